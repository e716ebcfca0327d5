"""The parts of a plot as frozen values: curves, dots, bands, lines. Colours are roles of the theme."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from msgspec import Struct
from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QPainter

from app.draw.axis import Floats, Tick
from app.kit.theme import Theme


class Curve(Struct, frozen=True, eq=False):
    """A line through points; `is_dashed` distinguishes it by more than its colour."""

    x: Floats
    y: Floats
    role: str
    width: float = 1.0
    alpha: int = 255
    is_dashed: bool = False


class Dots(Struct, frozen=True, eq=False):
    """Points of one kind, `size` pixels across; `fill` is the role of their inside, None leaves it empty."""

    x: Floats
    y: Floats
    role: str
    symbol: Literal["o", "s", "x"] = "o"
    size: float = 5.0
    fill: str | None = None
    alpha: int = 255


class Band(Struct, frozen=True):
    """A range of values across the whole plot, lightly coloured; with `has_line` its upper end is a dashed line."""

    low: float
    high: float
    role: str
    has_line: bool = False


class ShadedSpan(Struct, frozen=True):
    """A range along x, lightly coloured; its end is a dashed line with a name."""

    low: float
    high: float
    role: str
    name: str


class SelectedLine(Struct, frozen=True):
    """A vertical line at the selection."""

    x: float
    role: str = "selected"


class Painted(Struct, frozen=True, eq=False):
    """Something that is neither curve nor dots: a function that paints over the plot in pixels."""

    paint: Callable[[QPainter, PlotFrame], None]


ChartMark = Curve | Dots | Band | ShadedSpan | SelectedLine | Painted


class PlotFrame(Struct, frozen=True):
    """The plot on the screen: its area in pixels, the ranges of the axes, the pixel ratio and the theme."""

    rect: QRectF
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    ratio: float
    theme: Theme

    def x_of(self, x: float) -> float:
        low, high = self.x_range
        return self.rect.left() + (x - low) / (high - low) * self.rect.width()

    def y_of(self, y: float) -> float:
        low, high = self.y_range
        return self.rect.bottom() - (y - low) / (high - low) * self.rect.height()

    def point_of(self, x: float, y: float) -> QPointF:
        return QPointF(self.x_of(x), self.y_of(y))

    def nearest(self, points: Floats, at: QPointF, reach: float | None) -> int | None:
        """The index of the point `[N, 2]` nearest to a place on the screen: along x, or with `reach` within so many
        pixels."""
        if not len(points) or not self.rect.adjusted(-8, -8, 8, 8).contains(at):
            return None
        (x_low, x_high), (y_low, y_high) = self.x_range, self.y_range
        away = (points[:, 0] - x_low) / (x_high - x_low) * self.rect.width() - (at.x() - self.rect.left())
        if reach is not None:
            up = (points[:, 1] - y_low) / (y_high - y_low) * self.rect.height() - (self.rect.bottom() - at.y())
            away = np.hypot(away, up)
        best = int(np.abs(away).argmin())
        return best if reach is None or abs(away[best]) <= reach else None


class AxisTicks(Protocol):
    """Names along an axis for the visible range, at most `most`."""

    def ticks(self, most: int, low: float, high: float) -> Sequence[Tick]: ...


class Chart(Struct, frozen=True, eq=False):
    """A whole plot. `points` `[N, 2]` can be pointed at and picked: the nearest along x, or with `reach` the nearest
    within so many pixels; `keys` `[N]` are what the points stand for. `home` is the range of x and of y that shows
    everything; `title` and `note` are shown above the plot."""

    marks: tuple[ChartMark, ...]
    points: Floats
    keys: Sequence[Any]
    home: tuple[tuple[float, float], tuple[float, float]]
    x_ticks: AxisTicks
    y_ticks: AxisTicks
    title: str = ""
    note: str = ""
    note_role: Literal["muted", "good", "text"] = "muted"
    reach: float | None = None
    can_zoom_y: bool = False
