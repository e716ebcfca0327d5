"""Where each step's time went, step by step, and what looking at it cost."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QEvent, QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QFontMetricsF, QImage, QMouseEvent, QPainter, QPaintEvent, QPen, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.draw import timings as draw
from app.draw.format import milliseconds, percent
from app.draw.timings import Bars
from app.models import Models
from app.theme import Theme, font_fixed, font_text
from app.views.looking import tell_source
from app.views.panel import Panel
from app.views.pictures import argb, pixels_image
from engine.records import StepRecord

# In the order of draw.PHASES; the words say what the colours say
ROLES = ("page_used", "page_shared", "selected", "good")
_TOP, _BOTTOM = 4, 16


class Legend(QWidget):
    """Coloured squares with their names, as many as there is room for."""

    def __init__(self, theme: Theme, names: tuple[str, ...], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._names = names
        self._font = font_text(11.5)
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
        metrics = QFontMetricsF(self._font)
        self.setFixedSize(int(sum(metrics.horizontalAdvance(name) + 19 for name in self._names)), 18)
        self.setAccessibleName(", ".join(self._names))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setFont(self._font)
        metrics = QFontMetricsF(self._font)
        left = 0.0
        for name, role in zip(self._names, ROLES, strict=True):
            painter.fillRect(QRectF(left, 5, 8, 8), self._theme.color(role))
            painter.setPen(self._theme.color("muted"))
            painter.drawText(QPointF(left + 12, 9 + metrics.capHeight() / 2), name)
            left += metrics.horizontalAdvance(name) + 19


class TimingCanvas(QWidget):
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
        self.setMouseTracking(True)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setMinimumSize(60, 40)

    @property
    def bars(self) -> Bars | None:
        return self._bars

    def show_steps(
        self, theme: Theme, millis: draw.Millis, is_prefill: draw.Flags, selected: int | None, first_step: int
    ) -> None:
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
        return QRectF(0, _TOP, self.width(), max(1, self.height() - _TOP - _BOTTOM))

    def _drawn(self) -> Bars:
        if self._bars is None:
            ratio, plot = self.devicePixelRatioF(), self._plot()
            one, two, three, four = (argb(getattr(self._theme, role)) for role in ROLES)
            size = (max(1, int(plot.width() * ratio)), max(1, int(plot.height() * ratio)))
            self._bars = draw.paint(self._millis, self._is_prefill, *size, (one, two, three, four), round(ratio))
            self._image = pixels_image(self._bars.pixels, ratio)
        return self._bars

    def paintEvent(self, event: QPaintEvent) -> None:
        if not len(self._millis):
            return
        painter = QPainter(self)
        bars, plot, ratio = self._drawn(), self._plot(), self.devicePixelRatioF()
        painter.drawImage(plot.topLeft(), self._image)
        painter.setPen(QPen(self._theme.color("hairline"), 1))
        painter.drawLine(plot.bottomLeft() + QPointF(0, 0.5), plot.bottomRight() + QPointF(0, 0.5))
        painter.setFont(font_fixed(10))
        self._paint_cut(painter, bars, plot, ratio)
        self._paint_axis(painter, bars, plot, ratio)
        place = bars.bar_of(self._selected) if self._selected is not None else None
        if place is not None:
            painter.setPen(QPen(self._theme.color("selected"), 1))
            left, width = place[0] / ratio, max(place[1] / ratio, 2)
            painter.drawRect(QRectF(round(left) - 1, plot.top() - 2, round(width) + 1, plot.height() + 2))

    def _paint_cut(self, painter: QPainter, bars: Bars, plot: QRectF, ratio: float) -> None:
        """Bars taller than the scale say how tall they are; where there are many, the first few."""
        free_from = -1.0
        painter.setPen(self._theme.color("text"))
        for bar in bars.clipped:
            x = (bar * bars.pitch + bars.bar_width) / ratio + 3
            text = "↑ " + milliseconds(float(self._millis[bars.steps[bar]].sum()))
            width = painter.fontMetrics().horizontalAdvance(text)
            if x < free_from or x + width > plot.right() - 60:
                continue
            place = QRectF(x - 1, plot.top(), width + 3, 13)
            painter.fillRect(place, self._theme.color("panel", 215))
            painter.drawText(place, int(Qt.AlignmentFlag.AlignCenter), text)
            free_from = x + width + 8

    def _paint_axis(self, painter: QPainter, bars: Bars, plot: QRectF, ratio: float) -> None:
        painter.setPen(self._theme.color("muted"))
        right = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        last_index = int(bars.steps[-1])
        painter.drawText(QRectF(0, plot.bottom() + 2, 80, 13), 0, self.tr("step {0}").format(self._first_step))
        end = min(len(bars.steps) * bars.pitch / ratio, plot.width())
        if end > 0.7 * plot.width():
            last = self.tr("step {0}").format(self._first_step + last_index)
            painter.drawText(QRectF(end - 80, plot.bottom() + 2, 80, 13), right, last)
        words = self._words
        if bars.per_bar > 1:
            words += self.tr(" · each bar the slowest of {0}").format(bars.per_bar)
        room = QRectF(70, plot.bottom() + 2, max(0.0, plot.width() - 140), 13)
        painter.setPen(self._theme.color("text"))
        if painter.fontMetrics().horizontalAdvance(words) <= room.width():
            painter.drawText(room, int(Qt.AlignmentFlag.AlignHCenter), words)
        painter.setPen(self._theme.color("muted"))
        text = milliseconds(bars.scale_ms)
        box = QRectF(plot.right() - 58, plot.top(), 58, 13)
        painter.fillRect(box, self._theme.color("panel", 215))
        painter.drawText(box, right, text)

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


class TimingsView(Panel):
    """Clicking a bar looks at that step."""

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, self.tr("Step time"), parent)
        self._models = models
        self._millis = np.zeros((256, 4), np.float32)
        self._is_prefill = np.zeros(256, np.bool_)
        self._count = 0
        self._last: StepRecord | None = None
        self._drawn: tuple[object, ...] = ()
        self._pointed: int | None = None
        self._canvas = TimingCanvas(theme)
        self._canvas.setAccessibleName(self.tr("Time of every step, split into phases"))
        self._legend = Legend(theme, self._legend_names(None))
        self.set_body(self._canvas)
        self.add_to_strip(self._legend)
        self._canvas.picked.connect(self._on_picked)
        self._canvas.pointed.connect(self._on_pointed)
        models.selection.changed.connect(self._refresh)
        models.timeline.appended.connect(self._refresh)
        models.timeline.reset.connect(self._on_reset)
        self._refresh()

    # ---- intents -------------------------------------------------------------------------------------------------

    def set_theme(self, theme: Theme) -> None:
        super().set_theme(theme)
        self._legend.set_theme(theme)
        self._refresh()

    def _on_picked(self, index: int) -> None:
        records = self._models.timeline.records
        if index < len(records):
            is_newest = index == len(records) - 1
            self._models.selection.update(step=None if is_newest else records[index].step)

    def _on_pointed(self, index: int | None) -> None:
        if index != self._pointed:
            self._pointed = index
            self._tell()

    def _on_reset(self) -> None:
        self._count, self._last, self._pointed = 0, None, None
        self._refresh()

    # ---- showing -------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        if not self.isVisible():
            return
        self._take_new()
        if not self._count:
            self.set_empty(self.tr("Each step's time, phase by phase, appears here."))
            self.set_provenance("")
            self._drawn = ()
            return
        self.set_empty(None)
        timeline = self._models.timeline
        step = self._models.selection.now.step
        selected = None if step is None else self._index_of(step)
        key = (self._count, timeline.latest, selected, self.theme)
        if key == self._drawn:
            return
        self._drawn = key
        millis, is_prefill = self._millis[: self._count], self._is_prefill[: self._count]
        first = timeline.first
        self._canvas.show_steps(self.theme, millis, is_prefill, selected, first.step if first else 0)
        self._legend.set_names(self._legend_names(draw.looking_share(millis, is_prefill)))
        self._tell()

    def _take_new(self) -> None:
        """Append what is new; only a history that was cut is read again."""
        records = self._models.timeline.records
        if self._count > len(records) or (self._count and records[self._count - 1] is not self._last):
            self._count = 0
        new = records[self._count :]
        if not new:
            return
        need = self._count + len(new)
        if need > len(self._millis):
            room = max(need, 2 * len(self._millis))
            self._millis = np.resize(self._millis, (room, 4))
            self._is_prefill = np.resize(self._is_prefill, room)
        self._millis[self._count : need], self._is_prefill[self._count : need] = draw.phase_table(new)
        self._count, self._last = need, records[-1]

    def _index_of(self, step: int) -> int | None:
        first = self._models.timeline.first
        record = self._models.timeline.record(step)
        if first is None or record is None:
            return None
        # steps are numbered without gaps; where they are not, count
        index = step - first.step
        records = self._models.timeline.records
        if 0 <= index < len(records) and records[index] is record:
            return index
        return next((i for i, other in enumerate(records) if other is record), None)

    def _legend_names(self, share: float | None) -> tuple[str, ...]:
        looking = self.tr("looking {0}").format(percent(share)) if share is not None else self.tr("looking")
        return self.tr("forward"), self.tr("prepare"), self.tr("sample"), looking

    def _tell(self) -> None:
        """The pointed step in numbers, else the one that is selected or newest."""
        records = self._models.timeline.records
        index = self._pointed
        record = records[index] if index is not None and index < len(records) else None
        record = record or self._models.timeline.at(self._models.selection.now.step)
        if record is None:
            return
        words = self.tr("step {0} · {1} · {2}")
        self._canvas.show_words(words.format(record.step, record.phase, milliseconds(record.timings.total_ms)))
        forward, prepare, sample, observe = (milliseconds(ms) for ms in draw.phase_row(record))
        self._canvas.setToolTip(
            self.tr("step {0}: forward {1}, prepare {2}, sample {3}, looking {4}").format(
                record.step, forward, prepare, sample, observe
            )
        )
        tell_source(self, self._models, "recorded", "", record.step)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._refresh()
