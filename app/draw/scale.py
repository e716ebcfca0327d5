"""A logarithmic axis with a floor: zero and values too small to matter have a place of their own at its lower end."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from app.draw.axis import Tick

Floats = npt.NDArray[np.float64]

FLOOR = 0.1  # the fraction of the axis between the floor and the first decade


class LogScale(Struct, frozen=True):
    """The decades `10**low … 10**high` on an axis of length 1; with `has_floor` everything smaller is at 0."""

    low: int
    high: int
    has_floor: bool = True

    @property
    def _start(self) -> float:
        return FLOOR if self.has_floor else 0.0

    def at(self, values: npt.ArrayLike) -> Floats:
        """Places 0 … 1 of values; NaN and Inf are at the top, where they are noticed."""
        numbers = np.asarray(values, dtype=np.float64)
        is_loud = ~np.isfinite(numbers)
        is_low = ~is_loud & (numbers < 10.0**self.low)
        safe = np.where(is_loud | is_low, 10.0**self.low, numbers)
        span = max(1, self.high - self.low)
        places = self._start + (1 - self._start) * (np.log10(safe) - self.low) / span
        return np.where(is_loud, 1.0, np.where(is_low, 0.0, np.minimum(places, 1.0)))

    def ticks(self, most: int, low: float = 0.0, high: float = 1.0) -> tuple[Tick, ...]:
        """The decades between two places, at most `most`; with 2 and 5 times a decade if hardly one is visible; and the
        floor's zero."""
        start, span = self._start, max(1, self.high - self.low)
        first = self.low + max(0.0, low - start) / (1 - start) * span
        last = self.low + max(0.0, high - start) / (1 - start) * span
        powers = range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1)
        step = max(1, -(-(len(powers) - 1) // max(1, most)))
        marks = [(float(self.at(10.0**power)), f"1e{power}") for power in powers[::step]]
        if last - first < 1.5:
            parts = [(n, power) for power in range(math.floor(first), math.ceil(last)) for n in (2, 5)]
            marks += [(float(self.at(n * 10.0**power)), f"{n}e{power}") for n, power in parts]
        floor = [(0.0, "0")] if self.has_floor else []
        return tuple(Tick(at, text) for at, text in sorted(floor + marks) if low - 1e-9 <= at <= high + 1e-9)


def log_scale(values: Iterable[float], lowest: int, highest: int, floor: int) -> LogScale:
    """A scale for all finite values above `10**floor`, with at least the decades `lowest … highest`."""
    found = [v for v in values if math.isfinite(v) and v >= 10.0**floor]
    low = min([lowest, *(math.floor(math.log10(v)) for v in found)])
    high = max([highest, *(math.ceil(math.log10(v)) for v in found)])
    return LogScale(max(low, floor), max(high, low + 1))
