"""Small pieces of text that know how to be short: an eliding label, and a label with a coloured dot."""

from __future__ import annotations

import html
from typing import cast

from PySide6.QtCore import QPointF, QSize, Qt
from PySide6.QtGui import QEnterEvent, QFont, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QLabel, QSizePolicy, QWidget

from app.draw.format import escape, whole_words
from app.kit.theme import TextRole, current_theme

# Where numbers come from, and the theme's role for its dot.
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
    "past": "selected",  # of another step than the newest
}


SLACK = 24


class Opaque:
    """Mixin of a painted widget that fills its own background: what lies behind it need not be painted with it.

    The colour is painted, not a palette's: under a style sheet a palette that was set early does not stay.
    """

    _background = ""

    def set_background(self, role: str = "panel") -> None:
        """Fill it with the colour of a role of the theme."""
        self._background = role
        cast(QWidget, self).setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)

    def fill_background(self, painter: QPainter) -> None:
        if self._background:
            painter.fillRect(cast(QWidget, self).rect(), current_theme().color(self._background))


class ElidedLabel(Opaque, QLabel):
    """One line of plain text that gives way by whole words when there is no room."""

    def __init__(self, font: QFont | None = None, role: TextRole | None = None) -> None:
        super().__init__()
        self._text = self._brief = self._more = ""
        self.setTextFormat(Qt.TextFormat.PlainText)
        _dress(self, font, role)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)

    def setText(self, text: str, brief: str = "", more: str = "") -> None:
        """Its width never depends on its text, so the window is not laid out anew; a label would ask for that. `brief`
        is painted where the whole text has no room, and the tool tip has the whole, with `more` below it."""
        self._more = more
        if (text, brief) != (self._text, self._brief):
            if text != self._text:
                self.setAccessibleName(text)
            self._text, self._brief = text, brief
            self.update()

    def enterEvent(self, event: QEnterEvent) -> None:
        if self._brief:
            told = "\n".join(filter(None, (self._text, self._more)))
            self.setToolTip(plain_tip(told))  # what may be painted in brief is told whole
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
        text = self._brief if self._brief and metrics.horizontalAdvance(self._text) > rect.width() else self._text
        shown = whole_words(text, rect.width(), metrics.horizontalAdvance)
        painter.drawText(rect, int(self.alignment() | Qt.TextFlag.TextSingleLine), shown)


class DotLabel(Opaque, QWidget):
    """A coloured dot and a few words: where a picture's numbers come from. A ring stands for what is not of now."""

    def __init__(self) -> None:
        super().__init__()
        self._text = self._whole = self._brief = ""
        self._kind = "live cache"
        self._room = self._width = 0
        self.set_background("title_strip")
        self.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)
        self.hide()

    def enterEvent(self, event: QEnterEvent) -> None:
        self.setToolTip(self._whole)  # not with every step: it is read by who points at it
        super().enterEvent(event)

    @property
    def text(self) -> str:
        return self._text

    @property
    def kind(self) -> str:
        return self._kind

    @property
    def whole(self) -> str:
        """The sentence of the tool tip."""
        return self._whole

    def set_state(self, text: str, kind: str, whole: str = "", brief: str = "") -> None:
        """The words, the provenance that colours the dot, the sentence of the tool tip (the words unless given), and
        what to say where the words have no room."""
        self._whole = whole or text
        # The sentence has the step in it, and announcing it would announce every step: only what is not of now says it.
        name = self._whole if kind == "past" else text
        if name != self.accessibleName():
            self.setAccessibleName(name)
        if (text, kind, brief) == (self._text, self._kind, self._brief):
            return
        self._text, self._kind, self._brief = text, kind, brief
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
        color = current_theme().color(PROVENANCE_ROLES.get(self._kind, "faint"))
        is_now = self._kind != "past"  # a ring says it where there is room for the dot alone, to every eye
        painter.setPen(Qt.PenStyle.NoPen if is_now else QPen(color, 1.6))
        painter.setBrush(color if is_now else Qt.BrushStyle.NoBrush)
        radius = 3.2 if is_now else 2.8
        painter.drawEllipse(QPointF(4, self.height() / 2), radius, radius)
        painter.setPen(current_theme().color("selected" if self._kind == "past" else "muted"))
        rect = self.rect().adjusted(12, 0, 0, 0)
        shown = self._text
        if self._width > rect.width():
            advance = self.fontMetrics().horizontalAdvance
            has_brief = self._brief and advance(self._brief) <= rect.width()
            shown = self._brief if has_brief else whole_words(shown, rect.width(), advance)
        painter.drawText(rect, int(Qt.AlignmentFlag.AlignVCenter), shown)


def steady(room: int, needed: int) -> int:
    """A width that follows a text without following every digit: each change lays the whole window out anew."""
    return room if needed <= room <= needed + SLACK else needed + SLACK // 4


def prose(text: str) -> str:
    """A name, a path or a sentence that came from outside: spaces stay spaces, what cannot be seen is escaped."""
    return "".join(char if char.isprintable() else " " if char in "\n\t" else escape(char) for char in text)


def plain_tip(text: str) -> str:
    """A tool tip is read as rich text when it looks like it; words of a model must stay words."""
    return f"<span style='white-space:pre-wrap'>{html.escape(text)}</span>" if text else ""


def plain_label(
    text: str = "", font: QFont | None = None, role: TextRole | None = None, *, wraps: bool = False
) -> QLabel:
    """A label that never takes its text for markup."""
    label = QLabel()
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setText(text)
    label.setWordWrap(wraps)
    _dress(label, font, role)
    return label


def _dress(label: QLabel, font: QFont | None, role: TextRole | None) -> None:
    if font is not None:
        label.setFont(font)
    if role is not None:
        set_text_role(label, role)


def set_text_role(widget: QWidget, role: TextRole) -> None:
    """Give a label or an editor the colour of a role, in this theme and in every other: the style sheet has them."""
    if widget.property("textRole") == role:
        return
    font = widget.font() if widget.testAttribute(Qt.WidgetAttribute.WA_SetFont) else None
    widget.setProperty("textRole", role)
    widget.style().unpolish(widget)
    widget.style().polish(widget)
    if font is not None:  # polishing anew gives up a font that was set before
        widget.setFont(font)
