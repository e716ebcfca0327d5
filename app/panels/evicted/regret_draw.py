"""Policy regret as a scatter: what a rule thinks of each row, against what its removal does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from app.draw.scale import Floats, LogScale, log_scale
from engine.wire.measurements import Regret

_FLOOR = -10


@dataclass(frozen=True, eq=False)
class Scatter:
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
