"""The small things that panels, bars and dialogs are made of: layouts, labels, buttons, segments, and connections."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TypeVar, cast
from unicodedata import category

from PySide6.QtCore import QEvent, QObject, QPoint, QPointF, QRectF, QSize, Qt, Signal, SignalInstance
from PySide6.QtGui import (
    QAction,
    QEnterEvent,
    QFont,
    QFontMetricsF,
    QHelpEvent,
    QKeyEvent,
    QKeySequence,
    QMouseEvent,
    QPainter,
    QPainterPath,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractSlider,
    QApplication,
    QBoxLayout,
    QCheckBox,
    QComboBox,
    QDoubleSpinBox,
    QHBoxLayout,
    QLabel,
    QLayout,
    QLineEdit,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QSpinBox,
    QStackedWidget,
    QToolTip,
    QVBoxLayout,
    QWidget,
)

from app.draw.format import escape, whole_words
from app.kit.theme import TextRole, current_theme, font_text
from engine.wire.status import Work

Item = QWidget | QLayout
BoxItem = Item | tuple[Item, int] | int | None  # an item; (item, stretch); so many pixels; a stretch of free space
L = TypeVar("L", bound=QBoxLayout)
Margins = tuple[int, int, int, int]  # left, top, right, bottom, in pixels
_NONE = (0, 0, 0, 0)


def row(*parts: BoxItem, spacing: int = 6, margins: Margins = _NONE, on: QWidget | None = None) -> QHBoxLayout:
    """Lay parts out beside each other; `on`: the widget that gets the layout."""
    return fill(QHBoxLayout(on) if on is not None else QHBoxLayout(), parts, spacing, margins)


def column(*parts: BoxItem, spacing: int = 3, margins: Margins = _NONE, on: QWidget | None = None) -> QVBoxLayout:
    """Lay parts out below each other; `on`: the widget that gets the layout."""
    return fill(QVBoxLayout(on) if on is not None else QVBoxLayout(), parts, spacing, margins)


def fill(box: L, parts: tuple[BoxItem, ...], spacing: int, margins: Margins = _NONE) -> L:
    """Add parts to a layout."""
    box.setContentsMargins(*margins)
    box.setSpacing(spacing)
    for part in parts:
        item, stretch = part if isinstance(part, tuple) else (part, 0)
        match item:
            case None:
                box.addStretch(1)
            case int():
                box.addSpacing(item)
            case QLayout():
                box.addLayout(item, stretch)
            case _:
                box.addWidget(item, stretch)
    return box


def holder(layout: QLayout) -> QWidget:
    """A widget with this layout."""
    widget = QWidget()
    widget.setLayout(layout)
    return widget


class Spare(QWidget):
    """Holds what a panel shows only where there is room for it. It asks for no width: a panel behind a tab is not
    resized, and would go on asking for the width that it once had."""

    def __init__(self, layout: QLayout) -> None:
        super().__init__()
        self.setLayout(layout)

    def minimumSizeHint(self) -> QSize:
        return QSize(0, super().minimumSizeHint().height())


def stack(*sheets: QWidget) -> QStackedWidget:
    """Widgets of which one is shown at a time, the first at first."""
    widget = QStackedWidget()
    for sheet in sheets:
        widget.addWidget(sheet)
    return widget


def scrolled(inner: QWidget, area: QScrollArea | None = None) -> QScrollArea:
    """A scroll area without frame and background, which scrolls only upwards and downwards."""
    area = area or QScrollArea()
    area.setFrameShape(QScrollArea.Shape.NoFrame)
    area.setWidgetResizable(True)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.setWidget(inner)
    area.viewport().setAutoFillBackground(False)
    inner.setAutoFillBackground(False)  # setWidget has enabled it
    return area


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
    """One line of plain text that is shortened by whole words where it does not fit; the whole text is then its tool
    tip, unless it was given another."""

    def __init__(self, font: QFont | None = None, role: TextRole | None = None) -> None:
        super().__init__()
        self._text = self.brief = self._more = self._told = ""
        self.setTextFormat(Qt.TextFormat.PlainText)
        _dress(self, font, role)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)

    def setText(self, text: str, brief: str = "", more: str = "") -> None:
        """Set the text; the label's width does not depend on it, so no layout is needed (as QLabel would request).
        `brief` is painted where the text does not fit; the tool tip then has the text, and `more`, if any, below
        it."""
        text, brief = inert(text), inert(brief)
        if (text, brief, more) == (self._text, self.brief, self._more):
            return
        if text != self._text:
            self.setAccessibleName(text)
        self._text, self.brief, self._more = text, brief, more
        self.update()
        if self.underMouse():
            self._tell_whole()

    def enterEvent(self, event: QEnterEvent) -> None:
        self._tell_whole()
        super().enterEvent(event)

    def _tell_whole(self) -> None:
        has_more = bool(self.brief or self._more)  # the painted text may be the brief one
        if has_more or self.toolTip() == self._told:
            is_cut = self.fontMetrics().horizontalAdvance(self._text) > self.contentsRect().width()
            whole = "\n".join(filter(None, (self._text, self._more)))
            self._told = plain_tip(whole) if has_more or is_cut else ""
            self.setToolTip(self._told)

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


def set_steady_text(button: QAbstractButton, text: str) -> None:
    """Set a button's text; its width stays for small changes."""
    if text != button.text():
        button.setText(text)
        hint = button.sizeHint()
        button.setFixedSize(steady(button.width(), hint.width()), hint.height())


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


def push_button(text: str, slot: object, tip: str = "", *, is_small: bool = True) -> QPushButton:
    """A button that calls a slot or emits a signal; `is_small`: low enough for a row inside a panel."""
    button = QPushButton(text)
    if is_small:
        button.setObjectName("small")
    button.setToolTip(tip)
    button.clicked.connect(slot)
    return button


def own_action(widget: QWidget, text: str, slot: object, *, tip: str = "", key: str = "") -> QAction:
    """An action of this widget only, listed in its context menu; its key works while the focus is inside the widget."""
    action = QAction(text, widget)
    if tip:
        action.setToolTip(tip)
    if key:
        action.setShortcut(QKeySequence(key))
        action.setShortcutContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
    action.triggered.connect(slot)
    widget.addAction(action)
    return action


class ProgressButton(QPushButton):
    """A small button that begins some work, or stops it; meanwhile with a progress line along its lower edge."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._share: float | None = None
        self.setObjectName("small")
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def show_progress(self, text: str, share: float | None) -> None:
        """Set the text and the fraction that is done; None: nothing is running, or the total is unknown."""
        if text != self.text():
            self.setText(text)
        if share != self._share:
            self._share = share
            self.update()

    def show_work(self, words: str, work: Work | None, *, is_waiting: bool) -> None:
        """Show what the button begins; or while its end is waited for, how far the work is."""
        total = work.total if work is not None and is_waiting else None
        stop = "Stop" if work is None or not total else f"Stop  {work.done}/{total}"
        self.show_progress(stop if is_waiting else words, None if work is None or not total else work.done / total)

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if self._share is not None:
            line = QRectF(3, self.height() - 3, (self.width() - 6) * self._share, 2)
            QPainter(self).fillRect(line, current_theme().color("accent"))


class LinkButton(QPushButton):
    """One line of text that works as a link, elided where it is too long; disabled it is plain text."""

    def __init__(self) -> None:
        super().__init__()
        self.words = ""
        self.setObjectName("link")
        self.setFlat(True)
        self.setFont(font_text(12))
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def show_link(self, words: str, tip: str, *, leads: bool) -> None:
        """Set the line and the tool tip of its link; without `leads` it is plain text."""
        self.words = words
        self.setEnabled(leads)
        self.setAccessibleName(prose(words))
        self.setToolTip(tip if leads else "")
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        room = max(60, self.width() - 6)
        text = self.fontMetrics().elidedText(self.words, Qt.TextElideMode.ElideRight, room).replace("&", "&&")
        if text != self.text():
            self.setText(text)


class ActionButton(QPushButton):
    """A button with a text of its own that triggers an action, and is enabled and explained as that action is."""

    def __init__(self, text: str, action: QAction | None = None, *, is_small: bool = False) -> None:
        super().__init__(text)
        if is_small:
            self.setObjectName("small")
        self.action: QAction | None = None
        self.setEnabled(False)
        if action is not None:
            self.set_action(action)

    def set_action(self, action: QAction) -> None:
        """Set the action; called once."""
        self.action = action
        self.setAccessibleName(action.text())
        self.clicked.connect(action.trigger)
        action.changed.connect(self._follow)
        self._follow()

    def _follow(self) -> None:
        if self.action is not None:
            self.setEnabled(self.action.isEnabled())
            self.setToolTip(self.action.toolTip())


SEGMENTS_HEIGHT = 18
_PADDING = 9.0


class Segments(QWidget):
    """Signal: `chosen(id)` when the user chooses; setting the choice in code emits nothing."""

    chosen = Signal(str)

    def __init__(self, choices: Sequence[tuple[str, str, str]] = (), choice: str = "") -> None:
        super().__init__()
        self._choices: tuple[tuple[str, str, str], ...] = ()
        self.choice = ""
        self._font = font_text(11.5, QFont.Weight.Medium)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.set_choices(choices)
        self.set_choice(choice)

    def set_choices(self, choices: Sequence[tuple[str, str, str]]) -> None:
        """Set the choices, `(id, text, tool tip)` each."""
        self._choices = tuple(choices)
        self._name()
        self.updateGeometry()
        self.update()

    def set_choice(self, choice: str) -> None:
        if choice != self.choice:
            self.choice = choice
            self._name()
            self.update()

    def _name(self) -> None:
        """Set the accessible name to what is chosen."""
        names = {key: text for key, text, _ in self._choices}
        self.setAccessibleName(names.get(self.choice, self.choice))

    def sizeHint(self) -> QSize:
        rects = self.rects()
        return QSize(int(rects[-1].right()) + 1 if rects else 0, SEGMENTS_HEIGHT)

    def rects(self) -> list[QRectF]:
        metrics = QFontMetricsF(self._font)
        left, rects = 0.0, []
        for _, text, _ in self._choices:
            width = round(metrics.horizontalAdvance(text) + 2 * _PADDING)
            rects.append(QRectF(left, 0, width, SEGMENTS_HEIGHT))
            left += width
        return rects

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setFont(self._font)
        outline = QPainterPath()
        outline.addRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), 4, 4)
        painter.fillPath(outline, current_theme().color("field"))
        painter.setClipPath(outline)
        for rect, (key, text, _) in zip(self.rects(), self._choices, strict=True):
            is_on = key == self.choice
            if is_on:
                painter.fillRect(rect, current_theme().color("accent"))
            painter.setPen(current_theme().color("on_accent" if is_on else "muted"))
            painter.drawText(rect, int(Qt.AlignmentFlag.AlignCenter), text)
        painter.setClipping(False)
        painter.setPen(QPen(current_theme().color("text" if self.hasFocus() else "hairline"), 1))
        painter.drawPath(outline)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        for rect, (key, _, _) in zip(self.rects(), self._choices, strict=True):
            if rect.contains(event.position()):
                self._choose(key)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        step = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}.get(Qt.Key(event.key()))
        if step is None or not self._choices:
            super().keyPressEvent(event)
            return
        keys = [key for key, _, _ in self._choices]
        index = keys.index(self.choice) if self.choice in keys else 0
        self._choose(keys[(index + step) % len(keys)])

    def event(self, event: QEvent) -> bool:
        is_arrow = isinstance(event, QKeyEvent) and event.key() in (Qt.Key.Key_Left, Qt.Key.Key_Right)
        if event.type() == QEvent.Type.ShortcutOverride and is_arrow:
            # Arrow keys choose a segment here; in a picture they are shortcuts that select heads.
            event.accept()
            return True
        if event.type() == QEvent.Type.ToolTip:
            for rect, (_, _, tip) in zip(self.rects(), self._choices, strict=True):
                if rect.contains(event.pos()):  # type: ignore[attr-defined]
                    QToolTip.showText(event.globalPos(), tip, self)  # type: ignore[attr-defined]
            return True
        return super().event(event)

    def _choose(self, key: str) -> None:
        if key != self.choice:
            self.set_choice(key)
            self.chosen.emit(key)


def connect_all(*pairs: tuple[SignalInstance, object]) -> None:
    """Connect each signal to its slot (or to a signal that forwards it), in this order."""
    for signal, slot in pairs:
        signal.connect(slot)


def on_change(slot: object, *fields: QObject) -> None:
    """Call a slot (or emit a signal) when the value of any of the fields changes."""
    for field in fields:
        _changed(field).connect(slot)


def _changed(field: QObject) -> SignalInstance:
    match field:
        case QComboBox():
            return field.currentIndexChanged
        case QSpinBox() | QDoubleSpinBox() | QAbstractSlider():
            return field.valueChanged
        case QLineEdit():
            return field.textChanged
        case QCheckBox():
            return field.toggled
        case Segments():
            return field.chosen
    signal: SignalInstance = field.changed  # type: ignore[attr-defined]  # of our own
    return signal


class PopupKeys(QObject):
    """A key of the window that the popup has no use for closes it and acts; where its action is disabled, the window
    says why, as without the popup."""

    def __init__(self, popup: QWidget) -> None:
        super().__init__(popup)
        self._popup = popup
        popup.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if not isinstance(event, QKeyEvent) or event.type() != QEvent.Type.KeyPress:
            return False
        if event.key() == Qt.Key.Key_Escape:  # closes the popup and no more, although it stops a run in the window
            return False
        key, below = QKeySequence(event.keyCombination()), self._popup.parentWidget()
        window = below.window() if below is not None else None
        action = next((each for each in window.actions() if key in each.shortcuts()), None) if window else None
        if window is None or action is None:
            return False
        self._popup.close()
        if action.isEnabled():
            action.trigger()
        else:
            QApplication.sendEvent(window, event)
        return True
