"""Steps as evenly spaced places on an axis, though their numbers have gaps; and an array with numbers of every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from app.draw.format import thousands
from engine.wire.records import StepRecord


class StepAxis:
    """The first step is at its own number, each later one a unit further; the name of a place is its step."""

    def __init__(self, steps: Sequence[int]) -> None:
        self._steps = np.array(steps, np.int64)

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
