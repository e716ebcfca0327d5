"""The ticks of the timeline: how surprising each step's tokens were, and where one was forced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.wire.records import StepRecord

FULL_SURPRISAL = 8.0


class Ticks:
    """Height and forcedness of every step, in arrays that grow by doubling: an append costs what is new."""

    def __init__(self) -> None:
        self._count = 0
        self._last: StepRecord | None = None
        self._heights = np.zeros(256, dtype=np.float32)
        self._forced = np.zeros(256, dtype=bool)

    def __len__(self) -> int:
        return self._count

    def take(self, records: Sequence[StepRecord]) -> None:
        """Take the records that are not in yet; a history that was cut is read again."""
        if self._count > len(records) or (self._count and records[self._count - 1] is not self._last):
            self._count = 0
        while len(records) > len(self._heights):
            self._heights = np.concatenate([self._heights, np.zeros_like(self._heights)])
            self._forced = np.concatenate([self._forced, np.zeros_like(self._forced)])
        for index in range(self._count, len(records)):
            self._heights[index], self._forced[index] = _tick(records[index])
        self._count = len(records)
        self._last = records[-1] if records else None

    def put(self, index: int, record: StepRecord) -> None:
        """Another record of a step that was taken."""
        if index < self._count:
            self._heights[index], self._forced[index] = _tick(record)
        if index == self._count - 1:
            self._last = record

    def columns(self, width: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """The highest tick of every pixel column, and whether a token was forced there."""
        heights, forced = np.zeros(width, dtype=np.float32), np.zeros(width, dtype=bool)
        places = np.round(np.linspace(0, width - 1, self._count)).astype(np.intp)
        np.maximum.at(heights, places, self._heights[: self._count])
        forced[places[self._forced[: self._count]]] = True
        return heights, forced


def stamped(places: npt.NDArray[np.intp], width: int, stamp: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Opacity, `[height, width + stamp's width - 1]`, of a stamp put down at each of some columns of `width`, one over
    the other as a painter would."""
    height, across = stamp.shape
    clear = np.ones((height, width + across - 1), dtype=np.float32)
    for shift in range(across):
        clear[:, places + shift] *= 1 - stamp[:, shift, None]
    return 1 - clear


def _tick(record: StepRecord) -> tuple[float, bool]:
    """Height from the most surprising token of a step, and whether a token was forced."""
    surprises = [s for part in record.sequences for s in part.surprisal if s is not None]
    is_forced = any(part.forced and part.phase == "decode" for part in record.sequences)
    return min(1.0, max(surprises, default=0.0) / FULL_SURPRISAL), is_forced
