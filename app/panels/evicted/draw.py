"""Why rows went: the scores of one drop as points, beside those of the rows that stayed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.wire.evictions import Eviction

Floats = npt.NDArray[np.float64]


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
