"""The legend of a chart's colours: squares with names, in one or more lines."""

from __future__ import annotations

from collections.abc import Iterator

from PySide6.QtCore import QRectF, QSize
from PySide6.QtGui import QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.kit.labels import Opaque
from app.kit.text_lines import TextPainter
from app.kit.theme import current_theme, font_text

_LINE, _SQUARE, _BESIDE, _BETWEEN = 15, 8, 4, 11


class ColorKey(Opaque, QWidget):
    """A coloured square and a name for each of some theme roles, above a chart; where it is narrow in several lines."""

    def __init__(self, roles: tuple[str, ...]) -> None:
        super().__init__()
        self._roles = roles
        self._names: tuple[str, ...] = ()
        self._painter = TextPainter(font_text(11))
        self.set_background()
        self.setFixedHeight(_LINE)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def set_names(self, names: tuple[str, ...]) -> None:
        """Set the names, in the order of the roles; an empty name leaves its colour out."""
        if names != self._names:
            self._names = names
            self.setAccessibleName(", ".join(filter(None, names)))
            self._fit()
            self.update()

    def minimumSizeHint(self) -> QSize:
        return QSize(1, self.height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        height = int(max((top for _, _, _, top in self._placed()), default=0)) + _LINE
        if height != self.height():
            self.setFixedHeight(height)

    def _placed(self) -> Iterator[tuple[str, str, float, float]]:
        """Role, name, and the left and top of the square of each."""
        left = top = 0.0
        for role, name in zip(self._roles, self._names, strict=False):
            if not name:
                continue
            width = -(-int(self._painter.width(name)) // 12) * 12 + _SQUARE + _BESIDE  # in steps: few moves
            if left and left + width > self.width():
                left, top = 0.0, top + _LINE
            yield role, name, left, top
            left += width + _BETWEEN

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_background(painter)
        for role, name, left, top in self._placed():
            square = QRectF(left, top + (_LINE - _SQUARE) / 2, _SQUARE, _SQUARE)
            painter.fillRect(square, current_theme().color(role))
            painter.setPen(current_theme().color("muted"))
            self._painter.left(painter, left + _SQUARE + _BESIDE, top + _LINE / 2, name)
