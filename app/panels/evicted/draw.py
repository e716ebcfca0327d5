"""Why a row went: every drop of a history, findable by position, and one drop as points beside those that stayed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.spec.cache import CacheSpec
from engine.wire.evictions import Eviction
from engine.wire.records import StepRecord

Floats = npt.NDArray[np.float64]
HELD = -1


@dataclass(frozen=True)
class Drop:
    """One layer's (and head's) drop of one step."""

    step: int
    eviction: Eviction


class Drops:
    """All drops of a history in order; appended to as steps come. Looking one up touches no step that is elsewhere.

    A change of the mode may compute all rows anew: only what the mode of the step in question dropped counts. What the
    change itself dropped is in no record, so nothing is certain after one.
    """

    def __init__(self) -> None:
        self._all: list[Drop] = []
        self._ends = np.zeros((256, 3), dtype=np.int64)  # seq_id, first and last position of each
        self._modes: list[tuple[int, CacheSpec]] = []  # from which step on, which mode
        self._begins: dict[int, int] = {}  # the first position that a sequence was fed itself

    def __len__(self) -> int:
        return len(self._all)

    def take(self, records: Iterable[StepRecord]) -> None:
        for record in records:
            if not self._modes or self._modes[-1][1] != record.cache:
                self._modes.append((record.step, record.cache))
            for part in record.sequences:
                self._begins.setdefault(part.seq_id, part.first_position)
            for eviction in record.evictions:
                if not len(eviction.positions):
                    continue
                if len(self._all) == len(self._ends):
                    self._ends = np.concatenate([self._ends, np.zeros_like(self._ends)])
                self._ends[len(self._all)] = eviction.seq_id, eviction.positions[0], eviction.positions[-1]
                self._all.append(Drop(record.step, eviction))

    def changed_at(self, step: int) -> int | None:
        """The step before which the mode of `step` was taken; None where the whole history up to it is in one mode."""
        modes = [first for first, _ in self._modes if first <= step]
        return modes[-1] if len(modes) > 1 else None

    def is_whole(self, seq_id: int) -> bool:
        """Whether a sequence was fed from its first token on: a fork begins with what its parent had left."""
        return self._begins.get(seq_id, 1) == 0

    def of(self, seq_id: int, position: int, step: int) -> list[Drop]:
        """Every drop of a position up to a step, oldest first: one a layer and head at most."""
        ends = self._ends[: len(self._all)]
        may = (ends[:, 0] == seq_id) & (ends[:, 1] <= position) & (ends[:, 2] >= position)
        found = (self._all[index] for index in np.flatnonzero(may))
        first = self.changed_at(step) or 0
        return [drop for drop in found if first <= drop.step <= step and drop.eviction.score_of(position) is not None]

    def latest(self, seq_id: int, step: int) -> list[Drop]:
        """The drops of the last step, up to `step`, that dropped anything of a sequence."""
        found: list[Drop] = []
        first = self.changed_at(step) or 0
        for drop in reversed(self._all):
            if drop.step < first:
                break
            if drop.step > step or drop.eviction.seq_id != seq_id:
                continue
            if found and drop.step != found[0].step:
                break
            found.append(drop)
        return found[::-1]


def when_dropped(drops: Sequence[Drop], layers: Sequence[int], heads: int) -> npt.NDArray[np.int64]:
    """`[L, H_kv]`: the step that dropped the position from that head, HELD where it is still there."""
    steps = np.full((len(layers), heads), HELD, dtype=np.int64)
    for drop in drops:
        if drop.eviction.layer in layers:
            row = list(layers).index(drop.eviction.layer)
            steps[row, slice(None) if drop.eviction.kv_head is None else drop.eviction.kv_head] = drop.step
    return steps


def drop_in(drops: Sequence[Drop], layer: int, kv_head: int) -> Drop | None:
    """The drop of that layer and head."""
    mine = (drop for drop in drops if drop.eviction.layer == layer)
    return next((drop for drop in mine if drop.eviction.kv_head in (None, kv_head)), None)


@dataclass(frozen=True, eq=False)
class Ranks:
    """Scores between `low` and `high`: of those that went, with the place of each in its stack, of those that stayed on
    merit (quantiles of them where they are many), and the border between."""

    victims: Floats
    victim_heights: npt.NDArray[np.int64]
    survivors: Floats
    border: float | None
    low: float
    high: float


def ranks(eviction: Eviction, part: float) -> Ranks:
    """Victims within that part of the axis are stacked; a score that is no number or infinite stands at the low end."""
    scores = eviction.scores.astype(np.float64)
    kept = eviction.survivors.quantiles.astype(np.float64)
    everything = np.concatenate([scores, kept])
    finite = everything[np.isfinite(everything)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    victims = np.clip(np.nan_to_num(scores, nan=low, posinf=high, neginf=low), low, high)
    return Ranks(
        victims=victims,
        victim_heights=stacked((victims - low) / (high - low), part),
        survivors=np.clip(kept, low, high),
        border=None if eviction.lowest_kept is None else float(eviction.lowest_kept),
        low=low,
        high=high,
    )


def stacked(places: Floats, width: float) -> npt.NDArray[np.int64]:
    """How high each dot must stand so that dots of that width on one line do not cover each other."""
    heights = np.zeros(len(places), dtype=np.int64)
    counts: dict[int, int] = {}
    for index in np.argsort(places, kind="stable"):
        cell = int(places[index] / max(width, 1e-9))
        heights[index] = counts.get(cell, 0)
        counts[cell] = heights[index] + 1
    return heights


def rank_of(eviction: Eviction, position: int) -> int | None:
    """The place of a victim among those of its drop, from 1 for the lowest score; None for others."""
    score = eviction.score_of(position)
    return None if score is None else int((eviction.scores < score).sum()) + 1
