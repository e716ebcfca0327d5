"""The bars of the layers: the bytes that each stores, of those that it has reserved."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QEvent, QRect, QRectF
from PySide6.QtGui import QAccessible, QHelpEvent, QImage, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from app.kit.labels import Opaque, plain_tip
from app.kit.pictures import argb, pixels_image
from app.kit.text_lines import TextPainter
from app.kit.theme import Themed, current_theme, font_fixed, font_text
from app.panels.bytes import draw
from app.panels.bytes.draw import BarColors, LayerBar
from app.panels.bytes.words import layer_words

LEAST_HEIGHT = 58
_MAX_READ = 40
_MOST_PITCH = 64.0  # greatest width of a layer's bar, in pixels
_PIECES = ("page_used", "page_shared", "page_cached", "page_host")


class LayerBars(Themed, Opaque, QWidget):
    """One bar per layer: stored bytes within reserved ones, with a line at the bytes predicted by the formula."""

    def __init__(self) -> None:
        super().__init__()
        self._bars: tuple[LayerBar, ...] = ()
        self._pixels = np.zeros((0, 0), np.uint32)
        self._image = QImage()
        self._painter = TextPainter(font_fixed(10))
        self.set_background()
        self.setAccessibleName("Bytes per layer")
        self.setMinimumSize(60, LEAST_HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)

    def show_bars(self, bars: tuple[LayerBar, ...]) -> None:
        if bars == self._bars:
            return
        is_same_form = len(bars) == len(self._bars)
        self._bars = bars
        if QAccessible.isActive():  # a long text, needed only by screen readers
            self.setAccessibleDescription("\n".join(layer_words(bar.source) for bar in bars[:_MAX_READ]))
        if self._draw() or not is_same_form:
            self.update()

    def _plot(self) -> QRect:
        return QRect(0, 15, self.width(), max(1, self.height() - 30))

    def _draw(self) -> bool:
        """Draw the bars; returns whether a pixel changed, which a few more bytes seldom cause."""
        ratio, plot, pitch = self.devicePixelRatioF(), self._plot(), self._pitch()
        gap = 4 if pitch > 12 else 1 if pitch > 3 else 0
        theme = current_theme()
        colors = BarColors(
            argb(theme.page_free), tuple(argb(getattr(theme, role)) for role in _PIECES), argb(theme.text)
        )
        size = round(plot.width() * ratio), round(plot.height() * ratio)
        pixels = draw.paint_bars(self._bars, *size, pitch * ratio, round(gap * ratio), colors)
        if np.array_equal(pixels, self._pixels):
            return False
        self._pixels, self._image = pixels, pixels_image(pixels, ratio)
        return True

    def take_theme(self) -> None:
        self._draw()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._draw()

    def _pitch(self) -> float:
        return min(self.width() / max(1, len(self._bars)), _MOST_PITCH)

    def event(self, event: QEvent) -> bool:
        """Show the tool tip of the layer under the mouse, with all of its numbers."""
        if isinstance(event, QHelpEvent):
            index = int(event.pos().x() / self._pitch()) if self._bars else -1
            if 0 <= index < len(self._bars):
                QToolTip.showText(event.globalPos(), plain_tip(layer_words(self._bars[index].source)), self)
            else:
                QToolTip.hideText()
            return True
        return super().event(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_background(painter)
        if not self._bars:
            return
        plot = self._plot()
        painter.drawImage(plot.topLeft(), self._image)
        painter.setFont(font_text(11))
        painter.setPen(current_theme().color("muted"))
        painter.drawText(QRectF(0, -1, self.width(), 14), 0, "stored / reserved")
        pitch = self._pitch()
        every = max(1, -(-26 // int(max(pitch, 1))))
        is_told_by_number = len({bar.name[:1] for bar in self._bars}) == 1  # False with L0 and X0 (cross layers)
        for index in range(0, len(self._bars), every):
            name = self._bars[index].name
            text, x = name[1:] if pitch <= 22 and is_told_by_number else name, (index + 0.5) * pitch - 1
            self._painter.between(painter, text, x, plot.bottom() + 9, 0, self.width(), self.width())
