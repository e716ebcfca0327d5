"""The record of rows that were dropped: enough to say why, without asking the cache. No torch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import field

from engine.wire.message import Part

NUM_QUANTILES = 17


class Survivors(Part, frozen=True, eq=False):
    """The rows that stayed: `on_merit` of them by their scores, `protected` whatever their scores (sinks, the latest).

    `quantiles` are of the scores on merit, lowest to highest: all of them up to 17, else 17 evenly spaced; empty where
    only protected rows stayed.
    """

    on_merit: int = 0
    protected: int = 0
    quantiles: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))


class Eviction(Part, frozen=True, eq=False):
    """Rows that one step dropped from one layer: `positions` `[E]` ascending and the `scores` `[E]` they had.

    `kv_head` None: every head dropped the same rows. A row with a lower score goes first; `lowest_kept` is the lowest
    score that stayed on merit, None where only protected rows (sinks, the latest) stayed. `rule` says it in words.
    """

    seq_id: int
    layer: int
    kv_head: int | None
    positions: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32]
    lowest_kept: float | None
    rule: str
    survivors: Survivors = field(default_factory=Survivors)

    @property
    def num_rows(self) -> int:
        """Rows that went, of this head or of all."""
        return len(self.positions)

    def score_of(self, position: int) -> float | None:
        """The score of a dropped position; None if this did not drop it."""
        place = int(np.searchsorted(self.positions, position))
        if place == len(self.positions) or self.positions[place] != position:
            return None
        return float(self.scores[place])
