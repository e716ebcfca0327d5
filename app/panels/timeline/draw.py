"""The ticks of the timeline: the surprisal of each step's tokens, and where a token was forced."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from engine.wire.records import StepRecord

FULL_SURPRISAL = 8.0
MOST = 16384  # blocks: an even number, and several for every pixel of a wide screen


class StepTicks:
    """Tick height and forced tokens of the nodes of a path, in at most `most` blocks of equally many nodes. Adding
    nodes costs O(new nodes); drawing does not depend on the length of the history."""

    def __init__(self, most: int = MOST) -> None:
        self._count = 0
        self._per_block = 1
        self._last: tuple[int, StepRecord | None] | None = None
        self._heights = np.zeros(most, np.float32)
        self._forced = np.zeros(most, np.bool_)

    def __len__(self) -> int:
        return self._count

    def take(self, nodes: Sequence[int], record_of: Callable[[int], StepRecord | None]) -> None:
        """Add the nodes that are new, with the records of their steps; all are read again if the path is another
        one."""
        if self._count > len(nodes) or (self._count and not self._is_last(nodes[self._count - 1], record_of)):
            self._clear()
        for index in range(self._count, len(nodes)):
            if index // self._per_block >= len(self._heights):
                self._join_blocks()
            if (record := record_of(nodes[index])) is not None:
                self._enter(index, record)
        self._count = len(nodes)
        self._last = (nodes[-1], record_of(nodes[-1])) if nodes else None

    def _is_last(self, node: int, record_of: Callable[[int], StepRecord | None]) -> bool:
        return self._last is not None and self._last[0] == node and self._last[1] is record_of(node)

    def put(self, index: int, record: StepRecord) -> None:
        """Replace the record of a step by one with more surprisals."""
        if index < self._count:
            self._enter(index, record)
        if index == self._count - 1:
            self._last = record.step, record

    def columns(self, width: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """For every pixel column the highest tick, and whether a token was forced there."""
        heights, forced = np.zeros(width, dtype=np.float32), np.zeros(width, dtype=bool)
        if not self._count:
            return heights, forced
        firsts = np.arange(0, self._count, self._per_block)
        middles = (firsts + np.minimum(firsts + self._per_block, self._count) - 1) / 2
        places = np.round(middles * (width - 1) / max(1, self._count - 1)).astype(np.intp)
        np.maximum.at(heights, places, self._heights[: len(firsts)])
        forced[places[self._forced[: len(firsts)]]] = True
        return heights, forced

    def _enter(self, index: int, record: StepRecord) -> None:
        height, is_forced = _tick(record)
        block = index // self._per_block
        self._heights[block] = max(self._heights[block], height)
        self._forced[block] |= is_forced

    def _join_blocks(self) -> None:
        """Join pairs of blocks, each keeping the greater height."""
        for array in (self._heights, self._forced):
            half = len(array) // 2
            array[:half] = np.maximum(array[0 : 2 * half : 2], array[1 : 2 * half : 2])
            array[half:] = 0
        self._per_block *= 2

    def _clear(self) -> None:
        self._count, self._per_block = 0, 1
        self._heights[:] = 0
        self._forced[:] = False


def stamped(places: npt.NDArray[np.intp], width: int, stamp: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The opacity, `[height, width + stamp's width - 1]`, of a stamp painted at each of some columns of `width`,
    overlapping as a painter would."""
    height, across = stamp.shape
    clear = np.ones((height, width + across - 1), dtype=np.float32)
    for shift in range(across):
        clear[:, places + shift] *= 1 - stamp[:, shift, None]
    return 1 - clear


def _tick(record: StepRecord) -> tuple[float, bool]:
    """A step's tick: its height, from the greatest surprisal, and whether a token was forced."""
    surprises = [s for part in record.sequences for s in part.surprisal if s is not None]
    is_forced = any(part.forced and part.phase == "decode" for part in record.sequences)
    return min(1.0, max(surprises, default=0.0) / FULL_SURPRISAL), is_forced
