"""When each row was dropped and why, read from the history: pictures know that a row is gone, this knows since when.

Only what the mode in use dropped counts: a change of the mode that computes K and V anew brings every row back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.spec.cache import CacheSpec
from engine.wire.evictions import Eviction
from engine.wire.records import StepRecord


@dataclass(frozen=True)
class RowDrop:
    """One row's end in one layer and head: the step, the score it had, and the lowest that stayed on its merit."""

    step: int
    score: float
    lowest_kept: float | None
    rule: str


class EvictionLog:
    """Follows the records of a timeline; nothing writes to it. `records` is read anew where it no longer goes on from
    what was read."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._read = 0
        self._last: StepRecord | None = None
        self._found: dict[tuple[int, int], list[tuple[int, Eviction]]] = {}
        self._modes: list[tuple[int, CacheSpec]] = []  # from which step on, which mode

    def follow(self, records: Sequence[StepRecord]) -> EvictionLog:
        """Read what is new; O(new records)."""
        if self._read > len(records) or (self._read and records[self._read - 1] is not self._last):
            self._forget()
        for record in records[self._read :]:
            self._take(record)
        self._read, self._last = len(records), records[-1] if records else None
        return self

    def _take(self, record: StepRecord) -> None:
        if not self._modes or self._modes[-1][1] != record.cache:
            self._modes.append((record.step, record.cache))
        for eviction in record.evictions:
            self._found.setdefault((eviction.seq_id, eviction.layer), []).append((record.step, eviction))

    def drop_of(
        self, seq_id: int, layer: int, kv_head: int, position: int, step: int, cache: CacheSpec
    ) -> RowDrop | None:
        """What ended a row up to a step in that mode; None where the history does not tell."""
        first, mode = next((entry for entry in reversed(self._modes) if entry[0] <= step), (0, None))
        if mode != cache:
            return None
        for when, eviction in reversed(self._found.get((seq_id, layer), ())):
            if when < first:
                break
            score = eviction.score_of(position) if when <= step and eviction.kv_head in (None, kv_head) else None
            if score is not None:
                return RowDrop(when, score, eviction.lowest_kept, eviction.rule)
        return None
