"""Labels and text functions: a label that shortens its text, one with a coloured dot, and escaping of foreign text."""

from __future__ import annotations

import html
from typing import cast
from unicodedata import category

from PySide6.QtCore import QEvent, QPoint, QPointF, QSize, Qt
from PySide6.QtGui import QEnterEvent, QFont, QHelpEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QLabel, QSizePolicy, QToolTip, QWidget

from app.draw.format import escape, whole_words
from app.kit.theme import TextRole, current_theme

# Where a picture's numbers come from -> the colour role of its dot.
PROVENANCE_ROLES = {
    "live cache": "good",
    "kept": "good",
    "recorded": "accent",
    "recomputed": "page_shared",
    "dequantised": "warning",
    "as stored now": "selected",
    "predicted": "muted",
    "random": "warning",
    "difference": "text",
    "past": "selected",  # of a step that is not the newest
}


SLACK = 24
STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # categories of characters that are not seen but do something


class Opaque:
    """Mixin of a widget that paints its own background, so that Qt need not paint what lies behind it.

    The colour is painted, because under a style sheet a palette that was set early is replaced.
    """

    _background = ""

    def set_background(self, role: str = "panel") -> None:
        """Fill the background with the colour of a theme role."""
        self._background = role
        cast(QWidget, self).setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)

    def fill_background(self, painter: QPainter) -> None:
        if self._background:
            painter.fillRect(cast(QWidget, self).rect(), current_theme().color(self._background))


class TellsPlaces:
    """Mixin, named before the widget's class, of a widget whose tool tip depends on the place under the mouse."""

    def tip_at(self, place: QPoint) -> str:
        """The tool tip of a place of the widget, or of a scroll area's viewport; empty if it has none."""
        raise NotImplementedError

    def event(self, event: QEvent) -> bool:
        return self._show_tip(event) or super().event(event)  # type: ignore[misc]

    def viewportEvent(self, event: QEvent) -> bool:
        return self._show_tip(event) or super().viewportEvent(event)  # type: ignore[misc]

    def _show_tip(self, event: QEvent) -> bool:
        if not isinstance(event, QHelpEvent) or event.type() != QEvent.Type.ToolTip:
            return False
        QToolTip.showText(event.globalPos(), plain_tip(self.tip_at(event.pos())), cast(QWidget, self))
        return True


class ElidedLabel(Opaque, QLabel):
    """One line of plain text that is shortened by whole words where it does not fit."""

    def __init__(self, font: QFont | None = None, role: TextRole | None = None) -> None:
        super().__init__()
        self._text = self.brief = self._more = ""
        self.setTextFormat(Qt.TextFormat.PlainText)
        _dress(self, font, role)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)

    def setText(self, text: str, brief: str = "", more: str = "") -> None:
        """Set the text; the label's width does not depend on it, so no layout is needed (as QLabel would request).
        `brief` is painted where the text does not fit; the tool tip then has the text, and `more`, if any, below
        it."""
        self._more = more
        text, brief = inert(text), inert(brief)
        if (text, brief) != (self._text, self.brief):
            if text != self._text:
                self.setAccessibleName(text)
            self._text, self.brief = text, brief
            self.update()

    def enterEvent(self, event: QEnterEvent) -> None:
        if self.brief or self._more:
            told = "\n".join(filter(None, (self._text, self._more)))
            self.setToolTip(plain_tip(told))  # the whole text, as the painted one may be the brief one
        super().enterEvent(event)

    def text(self) -> str:
        return self._text

    def sizeHint(self) -> QSize:
        return self.minimumSizeHint()

    def minimumSizeHint(self) -> QSize:
        return QSize(0, self.fontMetrics().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_background(painter)
        painter.setPen(self.palette().color(self.foregroundRole()))
        rect, metrics = self.contentsRect(), self.fontMetrics()
        text = self.brief if self.brief and metrics.horizontalAdvance(self._text) > rect.width() else self._text
        shown = whole_words(text, rect.width(), metrics.horizontalAdvance)
        painter.drawText(rect, int(self.alignment() | Qt.TextFlag.TextSingleLine), shown)


class DotLabel(Opaque, QWidget):
    """A coloured dot and a few words: where a picture's numbers come from. A ring: they are not of the newest step."""

    def __init__(self) -> None:
        super().__init__()
        self.text = self.whole = self.brief = ""
        self.kind = "live cache"
        self._room = self._width = 0
        self.set_background("title_strip")
        self.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)
        self.hide()

    def enterEvent(self, event: QEnterEvent) -> None:
        self.setToolTip(plain_tip(self.whole))  # set only when it is needed, as it changes with every step
        super().enterEvent(event)

    def set_state(self, text: str, kind: str, whole: str = "", brief: str = "") -> None:
        """Set the words, the provenance that colours the dot, the tool tip's sentence (the words if not given), and
        what to show where the words do not fit."""
        text, brief = inert(text), inert(brief)
        self.whole = inert(whole) or text
        # The sentence names the step; as accessible name it would be announced at every step, so it is used for past
        # ones only.
        name = self.whole if kind == "past" else text
        if name != self.accessibleName():
            self.setAccessibleName(name)
        if (text, kind, brief) == (self.text, self.kind, self.brief):
            return
        self.text, self.kind, self.brief = text, kind, brief
        if self.isHidden() == bool(text):
            self.setVisible(bool(text))
        self._width = self.fontMetrics().horizontalAdvance(text)
        room = steady(self._room, self._width + 14)
        if room != self._room:
            self._room = room
            self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(self._room, self.fontMetrics().height())

    def minimumSizeHint(self) -> QSize:
        return QSize(9, self.fontMetrics().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_background(painter)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        color = current_theme().color(PROVENANCE_ROLES.get(self.kind, "faint"))
        is_now = self.kind != "past"  # the ring is recognisable without colour and without the words
        painter.setPen(Qt.PenStyle.NoPen if is_now else QPen(color, 1.6))
        painter.setBrush(color if is_now else Qt.BrushStyle.NoBrush)
        radius = 3.2 if is_now else 2.8
        painter.drawEllipse(QPointF(4, self.height() / 2), radius, radius)
        painter.setPen(current_theme().color("selected" if self.kind == "past" else "muted"))
        rect = self.rect().adjusted(12, 0, 0, 0)
        shown = self.text
        if self._width > rect.width():
            advance = self.fontMetrics().horizontalAdvance
            shown = whole_words(self.brief or shown, rect.width(), advance)
        painter.drawText(rect, int(Qt.AlignmentFlag.AlignVCenter), shown)


def steady(room: int, needed: int) -> int:
    """The width for a text that needs `needed` pixels; unchanged for small changes, because each lays out the window
    anew."""
    return room if needed <= room <= needed + SLACK else needed + SLACK // 4


def prose(text: str) -> str:
    """A text from outside on one line: newlines and tabs become spaces, other unprintable characters are escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char in "\n\t" else escape(char) for char in text)


def inert(text: str) -> str:
    """The text with control characters, lone surrogates and those that change the direction of text escaped; lines and
    tabs stay."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(escape(char) if category(char) in STEERING and char not in "\n\t" else char for char in text)


class PlainLabel(QLabel):
    """A label that shows its text as it is: never as rich text, and no character of it steers how it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.setTextFormat(Qt.TextFormat.PlainText)

    def setText(self, text: str) -> None:
        super().setText(inert(text))


def plain_tip(text: str) -> str:
    """A tool tip that shows the text as it is: Qt would read a text that looks like HTML as rich text."""
    return f"<span style='white-space:pre-wrap'>{html.escape(inert(text))}</span>" if text else ""


def plain_label(
    text: str = "",
    font: QFont | None = None,
    role: TextRole | None = None,
    *,
    wraps: bool = False,
    can_select: bool = False,
) -> QLabel:
    """A `PlainLabel` with a font and the colour of a role; `can_select`: with the mouse, to copy its text."""
    label = PlainLabel()
    label.setText(text)
    label.setWordWrap(wraps)
    if can_select:
        label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    _dress(label, font, role)
    return label


def _dress(label: QLabel, font: QFont | None, role: TextRole | None) -> None:
    if font is not None:
        label.setFont(font)
    if role is not None:
        set_text_role(label, role)


def set_text_role(widget: QWidget, role: TextRole) -> None:
    """Give a label or an editor a theme role's colour, through the style sheet, so that it follows the theme."""
    if widget.property("textRole") == role:
        return
    font = widget.font() if widget.testAttribute(Qt.WidgetAttribute.WA_SetFont) else None
    widget.setProperty("textRole", role)
    widget.style().unpolish(widget)
    widget.style().polish(widget)
    if font is not None:  # polishing resets a font that was set before
        widget.setFont(font)
