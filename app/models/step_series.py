"""Numbers of every step as one array that grows with the history."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from engine.wire.records import StepRecord


class StepSeries:
    """A row of numbers a step. Following the records costs what is new; a history that was cut is read again."""

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
