"""The bars of the step times on the screen, and the legend that names their colours."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QImage, QMouseEvent, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.draw.format import milliseconds, thousands
from app.kit.labels import Opaque, steady
from app.kit.pictures import argb, pixels_image
from app.kit.text_lines import TextPainter
from app.kit.theme import changes_theme, font_fixed, font_text
from app.panels.timings import draw
from app.panels.timings.draw import Bars, StepTimes

# In the order of draw.PHASES; the words say what the colours say
ROLES = ("page_used", "page_shared", "signed_positive", "page_cached")
_TOP, _BOTTOM, _SCALE = 4, 16, 54
MOST_LABELS = 40
_BY_IMPORTANCE = (3, 0, 2, 1)  # of the phases: what looking costs first, then the forward


class PhaseLegend(Opaque, QWidget):
    """Coloured squares with the names of the phases. Where room is scarce, those that say most stay."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._names: tuple[str, ...] = ()
        self._room = 0
        self._painter = TextPainter(font_text(11.5))
        self.set_background("title_strip")
        self.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)

    def set_names(self, names: tuple[str, ...]) -> None:
        """In the order of `draw.PHASES`."""
        if names != self._names:
            self._names = names
            self.setAccessibleName(", ".join(names))
            self.setToolTip(", ".join(names))
            self._fit()

    def set_room(self, room: int) -> None:
        """The pixels that it may take."""
        self._room = room
        self._fit()

    def _fit(self) -> None:
        width = steady(self.width(), int(sum(self._width(name) for _, name in self._shown())))
        if width != self.width():
            self.setFixedSize(width, 18)
        self.update()

    def _width(self, name: str) -> float:
        return self._painter.width(name) + 19

    def _shown(self) -> list[tuple[str, str]]:
        """The colour roles and names that find room."""
        free, kept = float(self._room), []
        for index in _BY_IMPORTANCE[: len(self._names)]:
            if (width := self._width(self._names[index])) <= free:
                kept.append(index)
                free -= width
        return [(ROLES[index], self._names[index]) for index in sorted(kept)]

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_background(painter)
        left = 0.0
        for role, name in self._shown():
            painter.fillRect(QRectF(left, 5, 8, 8), self.theme.color(role))
            painter.setPen(self.theme.color("muted"))
            left = self._painter.left(painter, left + 12, 9, name) + 7


class TimingCanvas(Opaque, QWidget):
    """`picked(index)` and `pointed(index or None)` count steps from the first one kept."""

    picked = Signal(int)
    pointed = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._times = draw.NO_TIMES
        self._bars: Bars | None = None
        self._image = QImage()
        self._selected: int | None = None
        self._words = ""
        self._painter = TextPainter(font_fixed(10))
        self.setMouseTracking(True)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setMinimumSize(60, 40)
        self.set_background()

    @property
    def bars(self) -> Bars:
        """What is painted, and where each step stands in it."""
        if self._bars is None:
            self._bars = self._paint_bars()
        return self._bars

    @property
    def words(self) -> str:
        """The line below the bars."""
        return self._words

    def show_steps(self, times: StepTimes, selected: int | None, words: str) -> None:
        """The bars, the index of the one that is outlined, and one line below them."""
        if times is not self._times:
            self._times, self._bars = times, None
        self._selected, self._words = selected, words
        self.update()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if changes_theme(event):
            self._bars = None

    def _plot(self) -> QRectF:
        return QRectF(0, _TOP, max(1, self.width() - _SCALE), max(1, self.height() - _TOP - _BOTTOM))

    def _paint_bars(self) -> Bars:
        ratio, plot, times = self.devicePixelRatioF(), self._plot(), self._times
        one, two, three, four = (argb(getattr(self.theme, role)) for role in ROLES)
        size = (max(1, int(plot.width() * ratio)), max(1, int(plot.height() * ratio)))
        bars = draw.paint(times.millis, times.is_prefill, *size, (one, two, three, four), round(ratio))
        self._image = pixels_image(bars.pixels, ratio)
        return bars

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_background(painter)
        if not self._times.num_steps:
            return
        bars, plot, ratio = self.bars, self._plot(), self.devicePixelRatioF()
        self._paint_grid(painter, bars, plot)
        painter.drawImage(plot.topLeft(), self._image)
        painter.setPen(QPen(self.theme.color("hairline"), 1))
        painter.drawLine(plot.bottomLeft() + QPointF(0, 0.5), plot.bottomRight() + QPointF(0, 0.5))
        self._paint_cut(painter, bars, plot, ratio)
        self._paint_axis(painter, bars, plot, ratio)
        place = bars.bar_of(self._selected) if self._selected is not None else None
        if place is not None:
            painter.setPen(QPen(self.theme.color("selected"), 1))
            left, width = place[0] / ratio, max(place[1] / ratio, 2)
            painter.drawRect(QRectF(round(left) - 1, plot.top() - 2, round(width) + 1, plot.height() + 2))

    def _paint_grid(self, painter: QPainter, bars: Bars, plot: QRectF) -> None:
        """A few round times to read the bars by, named at the right end."""
        for value in draw.grid_lines(bars.scale_ms):
            y = round(plot.bottom() - value / bars.scale_ms * plot.height()) + 0.5
            painter.setPen(QPen(self.theme.color("hairline"), 1))
            painter.drawLine(QPointF(plot.left(), y), QPointF(plot.right(), y))
            painter.setPen(self.theme.color("muted"))
            self._painter.right(painter, self.width(), y, milliseconds(value))

    def _paint_cut(self, painter: QPainter, bars: Bars, plot: QRectF, ratio: float) -> None:
        """Bars taller than the scale say how tall they are, the tallest first, as many as there is room for."""
        totals = {bar: float(self._times.millis[bars.steps[bar]].sum()) for bar in bars.clipped}
        tallest = sorted(totals, key=totals.__getitem__, reverse=True)[:MOST_LABELS]
        texts = ["↑ " + milliseconds(totals[bar]) for bar in tallest]
        spans = [(bar * bars.pitch / ratio, (bar * bars.pitch + bars.bar_width) / ratio) for bar in tallest]
        places = draw.label_places(spans, [self._painter.width(text) for text in texts], plot.right())
        painter.setPen(self.theme.color("text"))
        for text, x in zip(texts, places, strict=True):
            if x is not None:
                painter.fillRect(
                    QRectF(x - 1, plot.top(), self._painter.width(text) + 3, 13), self.theme.color("panel", 215)
                )
                self._painter.left(painter, x, plot.top() + 6.5, text)

    def _paint_axis(self, painter: QPainter, bars: Bars, plot: QRectF, ratio: float) -> None:
        painter.setPen(self.theme.color("muted"))
        last_index, lines, middle = int(bars.steps[-1]), self._painter, plot.bottom() + 8
        lines.left(painter, 0, middle, f"step {thousands(self._times.first_step)}")
        room = QRectF(70, plot.bottom() + 2, max(0.0, plot.width() - 140), 13)
        words = self._words
        if bars.per_bar > 1:  # where there is no room for the whole of it, the numbers stay
            whole = f"{words} · each bar the slowest of {bars.per_bar}"
            brief = f"{words} · slowest of {bars.per_bar}"
            words = next((text for text in (whole, brief) if lines.width(text) <= room.width()), words)
        words_width = lines.width(words)
        end = min(len(bars.steps) * bars.pitch / ratio, plot.width())
        last = f"step {thousands(self._times.first_step + last_index)}"
        is_free = end - lines.width(last) > room.center().x() + words_width / 2 + 8
        if end > 0.7 * plot.width() and is_free:
            lines.right(painter, end, middle, last)
        painter.setPen(self.theme.color("text"))
        if words_width <= room.width():
            lines.center(painter, room.center().x(), middle, words)

    def _index(self, event: QMouseEvent) -> int | None:
        if not self._times.num_steps:
            return None
        return self.bars.index_at(event.position().x() * self.devicePixelRatioF())

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
