"""A segmented control, small enough for a title strip: one of a few choices, all of them visible."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QFont, QFontMetricsF, QKeyEvent, QMouseEvent, QPainter, QPainterPath, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from app.kit.theme import current_theme, font_text

HEIGHT = 18
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
        return QSize(int(rects[-1].right()) + 1 if rects else 0, HEIGHT)

    def rects(self) -> list[QRectF]:
        metrics = QFontMetricsF(self._font)
        left, rects = 0.0, []
        for _, text, _ in self._choices:
            width = round(metrics.horizontalAdvance(text) + 2 * _PADDING)
            rects.append(QRectF(left, 0, width, HEIGHT))
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
