"""Records of dropped rows, with what is needed to explain them without the cache. No torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import field

from engine.wire.message import Part

NUM_QUANTILES = 17


class Survivors(Part, frozen=True, eq=False):
    """The rows that were kept: `on_merit` of them because of their scores, `protected` whatever their scores (sinks,
    the latest).

    `quantiles` are those of the scores of the rows kept on merit, ascending: all scores if they are 17 or fewer, else
    17 evenly spaced ones; empty if only protected rows were kept.
    """

    on_merit: int = 0
    protected: int = 0
    quantiles: np.ndarray[tuple[Any, ...], np.dtype[np.float32]] = field(
        default_factory=lambda: np.zeros(0, np.float32)
    )


class Eviction(Part, frozen=True, eq=False):
    """Rows that one step dropped from one layer: `positions` `[E]`, ascending, and their `scores` `[E]`.

    `kv_head` None: all heads dropped the same rows. Rows with lower scores are dropped first; `lowest_kept` is the
    lowest score of a row that was kept on merit, None if only protected rows were kept. `rule` names the reason in
    words.
    """

    seq_id: int
    layer: int
    kv_head: int | None
    positions: np.ndarray[tuple[Any, ...], np.dtype[np.int64]]
    scores: np.ndarray[tuple[Any, ...], np.dtype[np.float32]]
    lowest_kept: float | None
    rule: str
    survivors: Survivors = field(default_factory=Survivors)

    @property
    def num_rows(self) -> int:
        """Number of dropped rows, of this head or of each head."""
        return len(self.positions)

    def score_of(self, position: int) -> float | None:
        """The score of a dropped position; None if it is not among the dropped ones."""
        place = int(np.searchsorted(self.positions, position))
        if place == len(self.positions) or self.positions[place] != position:
            return None
        return float(self.scores[place])
