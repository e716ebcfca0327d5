"""Why rows went, as points: the scores of one drop beside those of the rows that stayed, and policy regret, what a rule
thinks of each row against what its removal does."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from app.draw.scale import Floats, LogScale, log_scale
from engine.wire.evictions import Eviction
from engine.wire.measurements import Regret

_FLOOR = -10


class Ranks(Struct, frozen=True, eq=False):
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


class Scatter(Struct, frozen=True, eq=False):
    """Places 0 … 1 from the lower left corner: `x` the rule's rank, `y` the KL on `scale`. `is_protected`: sinks and
    the latest, which the rule keeps whatever their score. `is_missed`: it would let go of it before most others, and
    it matters more than most others."""

    x: Floats
    y: Floats
    is_protected: npt.NDArray[np.bool_]
    is_missed: npt.NDArray[np.bool_]
    scale: LogScale


def scatter(regret: Regret, num_rows: int) -> Scatter:
    """`num_rows` are in the cache; the rule's budget, or all of them where it holds more, says which are protected."""
    kl, scores = regret.kl.astype(np.float64), regret.scores.astype(np.float64)
    scale = log_scale(kl.tolist(), -5, -1, _FLOOR)
    low, high = (float(scores.min()), float(scores.max())) if len(scores) else (0.0, 1.0)
    retention = regret.request.cache.retention
    recent = num_rows - retention.recent(retention.num_kept(num_rows))
    protected = regret.positions < retention.sinks
    if not retention.is_by_position:  # there the score says it all
        protected |= regret.positions + regret.request.page_size > recent
    missed = np.zeros(len(kl), dtype=np.bool_)
    if len(kl) >= 8:
        missed = (scores <= np.quantile(scores, 0.5)) & (kl >= np.quantile(kl, 0.9)) & (kl > 0) & ~protected
    return Scatter((scores - low) / max(high - low, 1e-12), scale.at(kl), protected, missed, scale)


def page_of(regret: Regret, position: int) -> int | None:
    """The page that holds a position; None where it was not removed."""
    index = position // regret.request.page_size
    if not 0 <= index < len(regret.positions):
        return None
    return index
