"""Axes: which tokens, positions or values are named beside a picture, and where the names of points are, so that they
do not overlap; logarithmic ones, and those over steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from app.draw.format import thousands
from engine.wire.records import StepRecord

_NICE = (1, 2, 5)


class Tick(Struct, frozen=True):
    """A name at a place of an axis, in the axis's units; for a cell, at its middle."""

    at: float
    text: str


class LinearTicks(Struct, frozen=True):
    """Ticks 1, 2 or 5 times a power of ten apart, or with `is_binary` (for bytes) a power of two, but at least
    `least`."""

    name: Callable[[float], str]
    least: float = 0.0
    is_binary: bool = False

    def ticks(self, most: int, low: float, high: float) -> tuple[Tick, ...]:
        """The ticks between two values, at most `most`."""
        wanted = max((high - low) / max(1, most), self.least)
        if not wanted > 0:
            return ()
        if self.is_binary:
            step = 2.0 ** math.ceil(math.log2(wanted))
        else:
            power = 10.0 ** math.floor(math.log10(wanted))
            step = next(factor * power for factor in (*_NICE, 10) if factor * power >= wanted * 0.999999)
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        return tuple(Tick(n * step, self.name(n * step)) for n in range(first, last + 1))


class ByteTicks(Struct, frozen=True):
    """Ticks for byte sizes on a binary logarithmic axis: powers of two, or round sizes if less than two powers are
    visible."""

    name: Callable[[int], str]

    def ticks(self, most: int, low: float, high: float) -> tuple[Tick, ...]:
        """The ticks between two logarithms, at most `most`."""
        if high - low >= 2:
            step = max(1, math.ceil((math.ceil(high) - math.floor(low)) / max(1, most)))
            found = range(math.ceil(low / step) * step, math.floor(high) + 1, step)
            return tuple(Tick(float(power), self.name(2**power)) for power in found if power >= 0)
        linear = LinearTicks(str, least=1.0, is_binary=True).ticks(most, 2.0**low, 2.0**high)
        return tuple(Tick(math.log2(tick.at), self.name(round(tick.at))) for tick in linear)


class FixedTicks(Struct, frozen=True):
    """Ticks at given places, whatever range is visible."""

    names: tuple[Tick, ...]

    def ticks(self, most: int, low: float, high: float) -> tuple[Tick, ...]:
        return tuple(tick for tick in self.names if low <= tick.at <= high)


def nice_step(least: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50 … that is not below `least`."""
    power = 1
    while True:
        for factor in _NICE:
            if factor * power >= least:
                return factor * power
        power *= 10


def ticks(
    start: float, stop: float, pixels: float, label_pixels: float, name: Callable[[int], str]
) -> tuple[Tick, ...]:
    """Ticks at the middles of cells of `start … stop`, drawn `pixels` wide, as close as labels of `label_pixels`
    allow."""
    if stop <= start or pixels <= 0:
        return ()
    step = nice_step(label_pixels * (stop - start) / pixels)
    first = -(-int(start) // step) * step
    return tuple(Tick(cell + 0.5, name(cell)) for cell in range(first, int(-(-stop // 1)), step) if cell + 0.5 <= stop)


Floats = npt.NDArray[np.float64]

FLOOR = 0.1  # the fraction of the axis between the floor and the first decade


class LogScale(Struct, frozen=True):
    """The decades `10**low … 10**high` on an axis of length 1, from `FLOOR` on; everything smaller is at 0."""

    low: int
    high: int

    def at(self, values: npt.ArrayLike) -> Floats:
        """Places 0 … 1 of values; NaN and Inf are at the top, where they are noticed."""
        numbers = np.asarray(values, dtype=np.float64)
        is_loud = ~np.isfinite(numbers)
        is_low = ~is_loud & (numbers < 10.0**self.low)
        safe = np.where(is_loud | is_low, 10.0**self.low, numbers)
        span = max(1, self.high - self.low)
        places = FLOOR + (1 - FLOOR) * (np.log10(safe) - self.low) / span
        return np.where(is_loud, 1.0, np.where(is_low, 0.0, np.minimum(places, 1.0)))

    def ticks(self, most: int, low: float = 0.0, high: float = 1.0) -> tuple[Tick, ...]:
        """The decades between two places, at most `most`; with 2 and 5 times a decade if hardly one is visible; and the
        floor's zero."""
        span = max(1, self.high - self.low)
        first = self.low + max(0.0, low - FLOOR) / (1 - FLOOR) * span
        last = self.low + max(0.0, high - FLOOR) / (1 - FLOOR) * span
        powers = range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1)
        step = max(1, -(-(len(powers) - 1) // max(1, most)))
        marks = [(float(self.at(10.0**power)), f"1e{power}") for power in powers[::step]]
        if last - first < 1.5:
            parts = [(n, power) for power in range(math.floor(first), math.ceil(last)) for n in (2, 5)]
            marks += [(float(self.at(n * 10.0**power)), f"{n}e{power}") for n, power in parts]
        return tuple(Tick(at, text) for at, text in sorted([(0.0, "0"), *marks]) if low - 1e-9 <= at <= high + 1e-9)


def log_scale(values: Iterable[float], lowest: int, highest: int, floor: int) -> LogScale:
    """A scale for all finite values above `10**floor`, with at least the decades `lowest … highest`."""
    found = [v for v in values if math.isfinite(v) and v >= 10.0**floor]
    low = min([lowest, *(math.floor(math.log10(v)) for v in found)])
    high = max([highest, *(math.ceil(math.log10(v)) for v in found)])
    return LogScale(max(low, floor), max(high, low + 1))


class Label(Struct, frozen=True):
    """The name of point `index`: the left end and the vertical middle of the text, in pixels from the upper left
    corner."""

    index: int
    left: float
    middle: float


def clusters(x: Floats, y: Floats) -> tuple[tuple[int, ...], ...]:
    """Groups of points at most 3 pixels apart, in their order: each group shares one mark and one name."""
    found: list[list[int]] = []
    for index in range(len(x)):
        home = next((c for c in found if math.hypot(x[c[0]] - x[index], y[c[0]] - y[index]) <= 3), None)
        if home is None:
            found.append([index])
        else:
            home.append(index)
    return tuple(tuple(cluster) for cluster in found)


def labels(
    x: Floats, y: Floats, widths: Sequence[float], size: tuple[float, float], height: float, first: Sequence[int] = ()
) -> tuple[Label, ...]:
    """Place the names, those of `first` before the others; some may not fit.

    `x` and `y` are pixels from the upper left corner of a plot of that `size`; `widths` and `height` are those of the
    texts.
    """
    taken = [(px - 5, py - 5, px + 5, py + 5) for px, py in zip(x, y, strict=True)]
    found: list[Label] = []
    for index in [*first, *(i for i in range(len(x)) if i not in first)]:
        width = widths[index]
        for left, middle in _places(float(x[index]), float(y[index]), width, height):
            box = (left - 2, middle - height / 2, left + width + 2, middle + height / 2)
            inside = box[0] >= 0 and box[1] >= 0 and box[2] <= size[0] and box[3] <= size[1]
            others = [other for i, other in enumerate(taken) if i != index]
            if inside and not any(_overlap(box, other) for other in others):
                taken.append(box)
                found.append(Label(index, left, middle))
                break
    return tuple(found)


def _places(x: float, y: float, width: float, height: float) -> list[tuple[float, float]]:
    beside = [(x + 9, y), (x - 9 - width, y), (x - width / 2, y - height), (x - width / 2, y + height)]
    return [*beside, (x + 7, y - height * 0.8), (x + 7, y + height * 0.8), (x - 7 - width, y - height * 0.8)]


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


class StepAxis:
    """The first step is at its own number, each later one a unit further; the name of a place is its step."""

    def __init__(self, steps: Sequence[int]) -> None:
        self.steps = list(steps)
        self._steps = np.array(self.steps, np.int64)

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def first(self) -> int:
        return int(self._steps[0]) if len(self._steps) else 0

    def place_of(self, step: int) -> int | None:
        """The place of a step; None if it is not on the axis."""
        index = int(np.searchsorted(self._steps, step))
        return self.first + index if index < len(self) and self._steps[index] == step else None

    def name(self, place: float) -> str:
        """The step at a place, as text; empty beyond the last one."""
        index = round(place) - self.first
        if 0 <= index < len(self):
            return thousands(int(self._steps[index]))
        if index < 0 or not len(self):
            return thousands(self.first + index)
        return ""


class StepSeries:
    """A row of numbers for every record. `follow` reads only new records, and all again if the history was cut."""

    def __init__(self, row_of: Callable[[StepRecord], tuple[float, ...]], num_columns: int) -> None:
        self._row_of = row_of
        self._rows = np.zeros((256, num_columns), np.float64)
        self._count = 0
        self._last: StepRecord | None = None

    def follow(self, records: Sequence[StepRecord]) -> npt.NDArray[np.float64]:
        """`[N, num_columns]`: a row for every record."""
        if self._count > len(records) or (self._count and records[self._count - 1] is not self._last):
            self._count = 0
        new = records[self._count :]
        if new:
            need = self._count + len(new)
            if need > len(self._rows):
                self._rows = np.resize(self._rows, (max(need, 2 * len(self._rows)), self._rows.shape[1]))
            self._rows[self._count : need] = [self._row_of(record) for record in new]
            self._count, self._last = need, records[-1]
        return self._rows[: self._count]


Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

WITHIN, LOSSY, DEPARTS, UNJUDGED = range(4)


class StepPoints(Struct, frozen=True, eq=False):
    """One point per step: `x`, the step; `y`, 0 … 1 on `scale`; `kinds`, WITHIN, LOSSY, DEPARTS, or UNJUDGED if
    rounding is no criterion; `disagrees`, whether the top token is another one. At the indices `breaks` the line is
    interrupted, because steps are missing before."""

    x: Floats
    y: Floats
    kinds: Ints
    disagrees: Flags
    scale: LogScale
    breaks: tuple[int, ...] = ()


def step_points(
    steps: npt.ArrayLike,
    values: npt.ArrayLike,
    kinds: Ints,
    disagrees: npt.ArrayLike,
    *,
    floor: int,
    extra: tuple[float, ...],
    breaks: tuple[int, ...] = (),
) -> StepPoints:
    """The points of all steps; NaN and Inf are at the top. The scale covers at least 1e-6 to 1e-2 and the values
    `extra`, and nothing below `10**floor`."""
    numbers = np.asarray(values, np.float64)
    scale = log_scale([*numbers.tolist(), *extra], -6, -2, floor)
    x, other = np.asarray(steps, np.float64), np.asarray(disagrees, np.bool_)
    return StepPoints(x, scale.at(numbers), kinds, other, scale, breaks)


def kinds_of(is_beyond: Flags, may_differ: npt.ArrayLike) -> Ints:
    """Each step's kind: within rounding; beyond it where the mode may differ (lossy); or a departure."""
    return np.where(~is_beyond, WITHIN, np.where(np.asarray(may_differ, np.bool_), LOSSY, DEPARTS)).astype(np.int64)
