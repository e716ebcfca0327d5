"""The plot of step times: stacked bars over the steps, drawn as one image of the visible part."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QRectF
from PySide6.QtGui import QImage, QPainter, QPen

from app.draw.axis import LinearTicks
from app.draw.format import milliseconds
from app.draw.step_axis import StepAxis
from app.kit.chart.marks import Chart, Painted, PlotFrame
from app.kit.pictures import argb, pixels_image
from app.kit.text_lines import TextPainter
from app.kit.theme import font_fixed
from app.panels.timings import draw
from app.panels.timings.draw import Bars

# The colours in the order of draw.PHASES.
ROLES = ("page_used", "accent", "page_host", "page_shared", "signed_positive", "page_cached", "faint")
MOST_LABELS = 40
_LEAST_STEPS = 32  # least number of steps on the axis, so that the first few are narrow bars


class TimeBars:
    """Paints the bars of a range of steps; the image is cached until the range or size changes."""

    def __init__(self, millis: draw.Millis, is_prefill: draw.Flags, first: int, selected: int | None) -> None:
        """`first` is the place of the first row; `selected` the index of a row."""
        self._millis, self._is_prefill = millis, is_prefill
        self._first, self._selected = first, selected
        self.full_ms = draw.full_scale(millis.sum(axis=1), is_prefill)
        self._key: object = None
        self._bars: Bars | None = None
        self._image = QImage()
        self._text = TextPainter(font_fixed(10))

    def bars(self, frame: PlotFrame) -> Bars:
        key = (frame.rect, frame.x_range, frame.ratio, frame.theme)
        if key != self._key or self._bars is None:
            ratio = frame.ratio
            size = (max(1, round(frame.rect.width() * ratio)), max(1, round(frame.rect.height() * ratio)))
            colours = tuple(argb(getattr(frame.theme, role)) for role in ROLES)
            x_range = frame.x_range[0] - self._first, frame.x_range[1] - self._first
            self._bars = draw.paint(self._millis, self._is_prefill, x_range, self.full_ms, size, colours, round(ratio))
            self._image = pixels_image(self._bars.pixels, ratio)
            self._key = key
        return self._bars

    def paint(self, painter: QPainter, frame: PlotFrame) -> None:
        bars = self.bars(frame)
        painter.drawImage(frame.rect.topLeft(), self._image)
        self._paint_cut(painter, frame, bars)
        if bars.per_bar > 1:
            self._paint_tag(painter, frame, f"each bar the slowest of {bars.per_bar}")
        if self._selected is not None:
            painter.setPen(QPen(frame.theme.color("selected"), 1))
            left, right = self._span(frame, self._selected)
            box = QRectF(round(left) - 0.5, frame.rect.top() + 0.5, max(round(right - left), 2), frame.rect.height())
            painter.drawRect(box)

    def _span(self, frame: PlotFrame, index: int) -> tuple[float, float]:
        """The pixels of a bar; at least one wide, where several share a pixel."""
        at = index + self._first
        left, right = frame.x_of(at - 0.5), frame.x_of(at + 0.5)
        return left, max(right, left + 1)

    def _paint_cut(self, painter: QPainter, frame: PlotFrame, bars: Bars) -> None:
        """Write the times of bars taller than the plot, the tallest first, as many as fit."""
        totals = {index: float(self._millis[index].sum()) for index in bars.clipped}
        tallest = sorted(totals, key=totals.__getitem__, reverse=True)[:MOST_LABELS]
        texts = ["↑ " + milliseconds(totals[index]) for index in tallest]
        start, top = frame.rect.left(), frame.rect.top()
        spans = [(left - start, right - start) for left, right in (self._span(frame, index) for index in tallest)]
        places = draw.label_places(spans, [self._text.width(text) for text in texts], frame.rect.width())
        for text, x in zip(texts, places, strict=True):
            if x is not None:
                self._paint_words(painter, frame, start + x, top, "text", text)

    def _paint_tag(self, painter: QPainter, frame: PlotFrame, text: str) -> None:
        """Write that not every step has a bar."""
        left = frame.rect.right() - self._text.width(text) - 2
        self._paint_words(painter, frame, left, frame.rect.top() + 13, "muted", text)

    def _paint_words(self, painter: QPainter, frame: PlotFrame, x: float, top: float, role: str, text: str) -> None:
        """Write a text on a background of its own, which covers the bars behind."""
        painter.fillRect(QRectF(x - 1, top, self._text.width(text) + 3, 13), frame.theme.color("panel", 215))
        painter.setPen(frame.theme.color(role))
        self._text.left(painter, x, top + 6.5, text)


def timing_chart(millis: draw.Millis, is_prefill: draw.Flags, axis: StepAxis, selected: int | None) -> Chart:
    """The chart with one bar per step: `millis` `[N, 7]`; `axis` has the steps of the rows, `selected` is an index."""
    first = axis.first
    bars = TimeBars(millis, is_prefill, first, selected)
    count, total = len(millis), millis.sum(axis=1)
    points = np.column_stack([np.arange(first, first + count), np.minimum(total, bars.full_ms)])
    return Chart(
        (Painted(bars.paint),),
        points,
        ((first - 0.5, first + max(count, _LEAST_STEPS) - 0.5), (0.0, bars.full_ms)),
        LinearTicks(axis.name, least=1),
        LinearTicks(milliseconds),
    )
