"""Why rows were evicted, as points: scores of evicted and kept rows; and policy regret, each row's score against the
effect of removing it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from app.draw.axis import Floats, LogScale, log_scale
from engine.wire.measurements import Regret
from engine.wire.records import Eviction

_FLOOR = -10


class Ranks(Struct, frozen=True, eq=False):
    """Scores between `low` and `high`: those of evicted rows with their height in a stack, those of rows kept by score
    (quantiles, if these are many), and `border`, the lowest that was kept."""

    victims: Floats
    victim_heights: npt.NDArray[np.int64]
    survivors: Floats
    border: float | None
    low: float
    high: float


def ranks(eviction: Eviction, part: float) -> Ranks:
    """Arrange the scores. Evicted ones within `part` of the axis are stacked; NaN and -Inf are at the low end."""
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
    """The height of each dot in its stack, so that dots of that width on one line do not cover each other."""
    heights = np.zeros(len(places), dtype=np.int64)
    counts: dict[int, int] = {}
    for index in np.argsort(places, kind="stable"):
        cell = int(places[index] / max(width, 1e-9))
        heights[index] = counts.get(cell, 0)
        counts[cell] = heights[index] + 1
    return heights


def rank_of(eviction: Eviction, position: int) -> int | None:
    """The rank of an evicted row in its eviction, 1 for the lowest score; None for other rows."""
    score = eviction.score_of(position)
    return None if score is None else int((eviction.scores < score).sum()) + 1


class Scatter(Struct, frozen=True, eq=False):
    """Places 0 … 1: `x`, the rule's rank of a row; `y`, the KL of removing it, on `scale`. `is_protected`: sinks and
    recent rows, which the rule keeps whatever their score; `is_missed`: the rule would evict it before most others
    although it matters more than most."""

    x: Floats
    y: Floats
    is_protected: npt.NDArray[np.bool_]
    is_missed: npt.NDArray[np.bool_]
    scale: LogScale


def scatter(regret: Regret, num_rows: int) -> Scatter:
    """The points of a measurement. `num_rows` in the cache and the rule's budget determine which rows are protected."""
    kl, scores = regret.kl.astype(np.float64), regret.scores.astype(np.float64)
    scale = log_scale(kl.tolist(), -5, -1, _FLOOR)
    low, high = (float(scores.min()), float(scores.max())) if len(scores) else (0.0, 1.0)
    retention = regret.request.cache.retention
    recent = num_rows - retention.recent(retention.num_kept(num_rows))
    protected = regret.positions < retention.sinks
    if not retention.is_by_position:  # a rule by position already scores recent rows highest
        protected |= regret.positions + regret.request.page_size > recent
    missed = np.zeros(len(kl), dtype=np.bool_)
    if len(kl) >= 8:
        missed = (scores <= np.quantile(scores, 0.5)) & (kl >= np.quantile(kl, 0.9)) & (kl > 0) & ~protected
    return Scatter((scores - low) / max(high - low, 1e-12), scale.at(kl), protected, missed, scale)


def page_of(regret: Regret, position: int) -> int | None:
    """The index of the removed page that contains a position; None if it was not removed."""
    index = position // regret.request.page_size
    if not 0 <= index < len(regret.positions):
        return None
    return index
