"""The legend of a picture's colours: squares with names, in one or more lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from PySide6.QtCore import QRectF, QSize
from PySide6.QtGui import QColor, QLinearGradient, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.kit.labels import Opaque, plain_tip
from app.kit.text_lines import TextPainter
from app.kit.theme import current_theme, font_text

_LINE, _SQUARE, _BESIDE, _BETWEEN = 15, 8, 4, 11


class ColorName(Struct, frozen=True):
    """A theme role or a colour `#rrggbb`, or a gradient from `color` to `end`, with its name."""

    color: str
    name: str
    end: str = ""


def names_of(roles: Sequence[str], names: Sequence[str]) -> tuple[ColorName, ...]:
    """The names of some roles; an empty name leaves its colour out."""
    return tuple(ColorName(role, name) for role, name in zip(roles, names, strict=True) if name)


class ColorKey(Opaque, QWidget):
    """A coloured square and a name for each of some colours; where it is narrow in several lines, or, with `is_line`,
    without those on the right that do not fit."""

    def __init__(self, *, is_line: bool = False) -> None:
        super().__init__()
        self._is_line = is_line
        self._keys: tuple[ColorName, ...] = ()
        self._painter = TextPainter(font_text(11))
        self.set_background()
        self.setFixedHeight(_LINE)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def show_keys(self, keys: tuple[ColorName, ...]) -> None:
        """Show these keys; repaints only if they changed."""
        if keys != self._keys:
            self._keys = keys
            text = ", ".join(key.name for key in keys)
            self.setAccessibleName(text)
            self.setToolTip(plain_tip(text) if self._is_line else "")
            self._fit()
            self.update()

    def minimumSizeHint(self) -> QSize:
        return QSize(1, self.height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        height = int(max((square.top() for _, square in self._placed()), default=0)) // _LINE * _LINE + _LINE
        if height != self.height():
            self.setFixedHeight(height)

    def _placed(self) -> Iterator[tuple[ColorName, QRectF]]:
        """Each key with its square; that of a gradient is longer."""
        left = top = 0.0
        for key in self._keys:
            square = QRectF(left, top + (_LINE - _SQUARE) / 2, _SQUARE * (3 if key.end else 1), _SQUARE)
            width = -(-int(self._painter.width(key.name)) // 12) * 12 + square.width() + _BESIDE  # in steps: few moves
            if left + width > self.width() and self._is_line:
                return
            if left and left + width > self.width():
                left, top = 0.0, top + _LINE
                square.moveTo(left, square.top() + _LINE)
            yield key, square
            left += width + _BETWEEN

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_background(painter)
        for key, square in self._placed():
            gradient = QLinearGradient(square.topLeft(), square.topRight())
            gradient.setColorAt(0, _color(key.color))
            gradient.setColorAt(1, _color(key.end or key.color))
            painter.fillRect(square, gradient if key.end else _color(key.color))
            painter.setPen(current_theme().color("muted"))
            self._painter.left(painter, square.right() + _BESIDE, square.center().y(), key.name)


def _color(name: str) -> QColor:
    return QColor(name) if name.startswith("#") else current_theme().color(name)
