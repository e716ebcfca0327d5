"""A colour bar with a histogram of the values; the ends of its range can be dragged."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QImage, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPen, QResizeEvent, QWheelEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.draw.colormap import HIGHEST, ColorScale, histogram, packed
from app.draw.format import brief
from app.kit.pictures import argb, pixels_image
from app.kit.theme import current_theme, font_fixed
from engine.wire.pictures import HeadPicture

_WIDTH = 74
_PAD = 9
_GRIP = 8
_BIN, _LONGEST = 4, 25


class RangeBar(QWidget):
    """Signals: `dragged(limit)` while the user moves an end, `reset()` on a double click."""

    dragged = Signal(float)
    reset = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._scale: ColorScale | None = None
        self._picture: HeadPicture | None = None
        self.limit = 1.0
        self._shown = 1.4
        self._held = False
        self.bar = QImage()
        self._bars = QImage()
        self.setFixedWidth(_WIDTH)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Expanding)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setCursor(Qt.CursorShape.SizeVerCursor)
        self.setToolTip("Drag an end, or use the arrow keys, to change the colour range; double-click fits it")

    def sizeHint(self) -> QSize:
        return QSize(_WIDTH, 120)

    def show_range(self, scale: ColorScale, picture: HeadPicture | None, limit: float) -> None:
        """Draw the histogram of a picture beside the range of the colours."""
        if (picture, limit) == (self._picture, self.limit) and scale is self._scale:
            return
        self._scale, self._picture, self.limit = scale, picture, limit
        if not self._held:  # while an end is dragged the axis stays as it is
            self._shown = limit * 1.25
        self.bar = self._bars = QImage()
        self.setAccessibleName(f"Colour range {scale.words(brief(limit))}")
        self.update()

    @property
    def _lowest(self) -> float:
        """The number at the bottom."""
        return -self._shown if self._scale is None or self._scale.is_signed else 0.0

    @property
    def _ends(self) -> tuple[tuple[float, str], ...]:
        """The ends that can be dragged, and their signs."""
        return ((self.limit, "+"), (-self.limit, "-")) if self._lowest else ((self.limit, ""),)

    def _y(self, value: float) -> float:
        return _PAD + (self._shown - value) / (self._shown - self._lowest) * (self.height() - 2 * _PAD)

    def _value(self, y: float) -> float:
        return self._shown - (y - _PAD) / max(1, self.height() - 2 * _PAD) * (self._shown - self._lowest)

    def paintEvent(self, event: QPaintEvent) -> None:
        if self._scale is None:
            return
        painter = QPainter(self)
        height = self.height() - 2 * _PAD
        self._paint_bar(painter, height)
        if self._picture is not None:
            painter.setOpacity(0.6)
            painter.drawImage(QPointF(14, _PAD), self._histogram_image(self._picture, height))
            painter.setOpacity(1.0)
        self._paint_ends(painter)

    def _histogram_image(self, picture: HeadPicture, height: int) -> QImage:
        """The histogram's bars, with the square root of each count as length; made once per picture and range."""
        if self._bars.isNull():
            lengths = np.ceil(histogram(picture, self._lowest, self._shown, max(1, height // _BIN)) * _LONGEST)
            lit = np.arange(_LONGEST)[None, :] < np.repeat(lengths, _BIN)[:, None]
            lit[_BIN - 1 :: _BIN] = False
            self._bars = pixels_image(np.where(lit, np.uint32(argb(current_theme().muted)), np.uint32(0)))
        return self._bars

    def _paint_bar(self, painter: QPainter, height: int) -> None:
        if self.bar.isNull() and self._scale is not None and height > 0:
            values = np.linspace(self._shown, self._lowest, height, dtype=np.float32)
            column = packed(self._scale.table)[np.minimum(self._scale.index(values, self.limit), HIGHEST)]
            self.bar = pixels_image(np.repeat(column[:, None], 8, axis=1))
        painter.drawImage(QPointF(2, _PAD), self.bar)
        painter.setPen(QPen(current_theme().color("hairline"), 1))
        painter.drawRect(QRectF(1.5, _PAD - 0.5, 9, height + 1))

    def _paint_ends(self, painter: QPainter) -> None:
        painter.setFont(font_fixed(10))
        center = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        for value, sign in self._ends:
            y = round(self._y(value)) + 0.5
            painter.setPen(QPen(current_theme().color("accent" if self.hasFocus() or self._held else "text"), 1))
            painter.drawLine(QPointF(0, y), QPointF(41, y))
            painter.fillRect(QRectF(0, y - 2.5, 12, 5), painter.pen().color())
            painter.drawText(QRectF(43, y - 8, _WIDTH - 43, 16), center, sign + brief(self.limit, 2))
        painter.setPen(current_theme().color("muted"))
        painter.drawText(QRectF(43, self._y(0) - 8, _WIDTH - 43, 16), center, "0")

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.bar = self._bars = QImage()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        near = min(abs(event.position().y() - self._y(end)) for end, _ in self._ends)
        self._held = near <= _GRIP or event.position().x() < 14
        self.mouseMoveEvent(event)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._held:
            value = abs(self._value(event.position().y()))
            self.dragged.emit(min(max(value, self._shown / 100), self._shown))

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if self._held:
            self._held = False
            self._shown = self.limit * 1.25
            self.bar = self._bars = QImage()
            self.update()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self._held = False
        self.reset.emit()

    def wheelEvent(self, event: QWheelEvent) -> None:
        self.dragged.emit(self.limit * 1.1 ** (-event.angleDelta().y() / 120))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        factor = {Qt.Key.Key_Up: 1.1, Qt.Key.Key_Down: 1 / 1.1}.get(Qt.Key(event.key()))
        if factor is None:
            super().keyPressEvent(event)
        else:
            self.dragged.emit(self.limit * factor)
