"""The bars of the step times on the screen, and the legend that names their colours."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QEvent, QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QImage, QMouseEvent, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.draw.format import milliseconds, thousands
from app.kit.labels import Ground, steady
from app.kit.pictures import argb, pixels_image
from app.kit.text_lines import TextPainter
from app.kit.theme import Theme, font_fixed, font_text
from app.panels.timings import draw
from app.panels.timings.draw import Bars

# In the order of draw.PHASES; the words say what the colours say
ROLES = ("page_used", "page_shared", "signed_positive", "page_cached")
_TOP, _BOTTOM, _SCALE = 4, 16, 54
MOST_LABELS = 40


class Legend(QWidget):
    """Coloured squares with their names, as many as there is room for."""

    def __init__(self, theme: Theme, names: tuple[str, ...], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._names = names
        self._ink = TextPainter(font_text(11.5))
        self._fit()
        self.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)

    def set_theme(self, theme: Theme) -> None:
        self._theme = theme
        self.update()

    def set_names(self, names: tuple[str, ...]) -> None:
        if names != self._names:
            self._names = names
            self._fit()
            self.update()

    def _fit(self) -> None:
        width = steady(self.width(), int(sum(self._ink.width(name) + 19 for name in self._names)))
        if width != self.width():
            self.setFixedSize(width, 18)
        self.setAccessibleName(", ".join(self._names))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        left = 0.0
        for name, role in zip(self._names, ROLES, strict=True):
            painter.fillRect(QRectF(left, 5, 8, 8), self._theme.color(role))
            painter.setPen(self._theme.color("muted"))
            left = self._ink.left(painter, left + 12, 9, name) + 7


class TimingCanvas(Ground, QWidget):
    """`picked(index)` and `pointed(index or None)` count steps from the first one kept."""

    picked = Signal(int)
    pointed = Signal(object)

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._millis = np.zeros((0, 4), np.float32)
        self._is_prefill = np.zeros(0, np.bool_)
        self._bars: Bars | None = None
        self._image = QImage()
        self._selected: int | None = None
        self._first_step = 0
        self._words = ""
        self._ink = TextPainter(font_fixed(10))
        self.setMouseTracking(True)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setMinimumSize(60, 40)
        self.set_ground(theme)

    @property
    def bars(self) -> Bars | None:
        return self._bars

    def show_steps(
        self, theme: Theme, millis: draw.Millis, is_prefill: draw.Flags, selected: int | None, first_step: int
    ) -> None:
        if theme is not self._theme:
            self.set_ground(theme)
        self._theme, self._millis, self._is_prefill = theme, millis, is_prefill
        self._selected, self._first_step = selected, first_step
        self._bars = None
        self.update()

    def show_words(self, words: str) -> None:
        """One line below the bars, about the step that is pointed at."""
        if words != self._words:
            self._words = words
            self.update()

    def _plot(self) -> QRectF:
        return QRectF(0, _TOP, max(1, self.width() - _SCALE), max(1, self.height() - _TOP - _BOTTOM))

    def _drawn(self) -> Bars:
        if self._bars is None:
            ratio, plot = self.devicePixelRatioF(), self._plot()
            one, two, three, four = (argb(getattr(self._theme, role)) for role in ROLES)
            size = (max(1, int(plot.width() * ratio)), max(1, int(plot.height() * ratio)))
            self._bars = draw.paint(self._millis, self._is_prefill, *size, (one, two, three, four), round(ratio))
            self._image = pixels_image(self._bars.pixels, ratio)
        return self._bars

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_ground(painter)
        if not len(self._millis):
            return
        bars, plot, ratio = self._drawn(), self._plot(), self.devicePixelRatioF()
        self._paint_grid(painter, bars, plot)
        painter.drawImage(plot.topLeft(), self._image)
        painter.setPen(QPen(self._theme.color("hairline"), 1))
        painter.drawLine(plot.bottomLeft() + QPointF(0, 0.5), plot.bottomRight() + QPointF(0, 0.5))
        self._paint_cut(painter, bars, plot, ratio)
        self._paint_axis(painter, bars, plot, ratio)
        place = bars.bar_of(self._selected) if self._selected is not None else None
        if place is not None:
            painter.setPen(QPen(self._theme.color("selected"), 1))
            left, width = place[0] / ratio, max(place[1] / ratio, 2)
            painter.drawRect(QRectF(round(left) - 1, plot.top() - 2, round(width) + 1, plot.height() + 2))

    def _paint_grid(self, painter: QPainter, bars: Bars, plot: QRectF) -> None:
        """A few round times to read the bars by, named at the right end."""
        for value in draw.grid_lines(bars.scale_ms):
            y = round(plot.bottom() - value / bars.scale_ms * plot.height()) + 0.5
            painter.setPen(QPen(self._theme.color("hairline"), 1))
            painter.drawLine(QPointF(plot.left(), y), QPointF(plot.right(), y))
            painter.setPen(self._theme.color("muted"))
            self._ink.right(painter, self.width(), y, milliseconds(value))

    def _paint_cut(self, painter: QPainter, bars: Bars, plot: QRectF, ratio: float) -> None:
        """Bars taller than the scale say how tall they are, the tallest first, as many as there is room for."""
        totals = {bar: float(self._millis[bars.steps[bar]].sum()) for bar in bars.clipped}
        tallest = sorted(totals, key=totals.__getitem__, reverse=True)[:MOST_LABELS]
        texts = ["↑ " + milliseconds(totals[bar]) for bar in tallest]
        spans = [(bar * bars.pitch / ratio, (bar * bars.pitch + bars.bar_width) / ratio) for bar in tallest]
        places = draw.label_places(spans, [self._ink.width(text) for text in texts], plot.right())
        painter.setPen(self._theme.color("text"))
        for text, x in zip(texts, places, strict=True):
            if x is not None:
                painter.fillRect(
                    QRectF(x - 1, plot.top(), self._ink.width(text) + 3, 13), self._theme.color("panel", 215)
                )
                self._ink.left(painter, x, plot.top() + 6.5, text)

    def _paint_axis(self, painter: QPainter, bars: Bars, plot: QRectF, ratio: float) -> None:
        painter.setPen(self._theme.color("muted"))
        last_index, ink, middle = int(bars.steps[-1]), self._ink, plot.bottom() + 8
        ink.left(painter, 0, middle, f"step {thousands(self._first_step)}")
        room = QRectF(70, plot.bottom() + 2, max(0.0, plot.width() - 140), 13)
        words = self._words
        if bars.per_bar > 1:  # where there is no room for the whole of it, the numbers stay
            whole = f"{words} · each bar the slowest of {bars.per_bar}"
            brief = f"{words} · slowest of {bars.per_bar}"
            words = next((text for text in (whole, brief) if ink.width(text) <= room.width()), words)
        words_width = ink.width(words)
        end = min(len(bars.steps) * bars.pitch / ratio, plot.width())
        last = f"step {thousands(self._first_step + last_index)}"
        is_free = end - ink.width(last) > room.center().x() + words_width / 2 + 8
        if end > 0.7 * plot.width() and is_free:
            ink.right(painter, end, middle, last)
        painter.setPen(self._theme.color("text"))
        if words_width <= room.width():
            ink.center(painter, room.center().x(), middle, words)

    def _index(self, event: QMouseEvent) -> int | None:
        if not len(self._millis):
            return None
        return self._drawn().index_at(event.position().x() * self.devicePixelRatioF())

    def mousePressEvent(self, event: QMouseEvent) -> None:
        index = self._index(event)
        if index is not None and event.button() == Qt.MouseButton.LeftButton:
            self.picked.emit(index)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self.pointed.emit(self._index(event))

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self.pointed.emit(None)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._bars = None
