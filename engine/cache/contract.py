"""What is told of the cache of one layer: its rows, its bytes, its states; no class of transformers.

Shapes: `[B, H_kv, S, D]`, with B = 1. In latent attention (MLA) "keys" is the compressed latent and "values" the
shared rotary key, exactly as transformers caches them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from engine.wire.evictions import Eviction
from engine.wire.prefix_match import WhyNotReused

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, eq=False)
class HeldRows:
    """What one layer holds now: keys `[1, H_kv, S, D_k]`, values `[1, H_kv, S, D_v]` of positions from `first` on.

    Where rows were dropped from between, `positions` `[H_kv, S]` say which are left, ascending in every head.
    """

    keys: torch.Tensor
    values: torch.Tensor
    first: int
    positions: torch.Tensor | None = None

    @property
    def stop(self) -> int:
        """One past the last position held."""
        if self.positions is None:
            return self.first + self.keys.shape[2]
        return int(self.positions.max()) + 1 if self.positions.numel() else 0


class HeldBytes(NamedTuple):
    """Bytes of one layer of one sequence.

    `stored` hold tokens, or state; of these, `scales` are a codec's scales and offsets, `residual` are rows that it
    has not coded yet. `reserved` is all storage; of this, `positions` say where the rows kept stand. Beside it,
    `dequantised` is the copy that attention is handed while it runs, `journal` what is kept for going back, `scores`
    the attention that a rule for dropping rows has noted or added up.
    """

    stored: int = 0
    reserved: int = 0
    scales: int = 0
    residual: int = 0
    positions: int = 0
    dequantised: int = 0
    journal: int = 0
    scores: int = 0


@dataclass(frozen=True, eq=False)
class EvictedRows:
    """Rows that a step dropped from one layer, before the host has seen which: their `positions` `[H_kv, E]`, the
    `scores` `[H_kv, S]` that all rows had, and the slots of these that were `kept` `[H_kv, K]` and `dropped`
    `[H_kv, E]`, both ascending; no protection kept those `on_merit` `[H_kv, S]`. `is_per_head`: heads may have dropped
    different rows. `rule` says why in words."""

    seq_id: int
    layer: int
    is_per_head: bool
    rule: str
    positions: torch.Tensor
    scores: torch.Tensor
    kept: torch.Tensor
    dropped: torch.Tensor
    on_merit: torch.Tensor

    @property
    def num_rows(self) -> int:
        """Rows that went, of all heads that are told."""
        return self.positions.numel() if self.is_per_head else self.positions.shape[1]


Evicted = EvictedRows | Eviction  # of whole pages the host knows which went: their table is its own


@dataclass(frozen=True, eq=False)
class StateMatrix:
    """A part of the state of one layer, of a size that no token changes: `[R, C]`, as it lies in memory; `shape` is
    that of the whole tensor which it is of."""

    name: str
    values: torch.Tensor
    shape: tuple[int, ...]


def rows_from(rows: HeldRows | None, first_position: int) -> HeldRows | None:
    """The rows of one run from a position on; None where there are none."""
    if rows is None or rows.stop <= first_position:
        return None
    start = max(0, first_position - rows.first)
    return HeldRows(rows.keys[:, :, start:], rows.values[:, :, start:], rows.first + start)


@dataclass(frozen=True)
class PageCounts:
    """Pages of one sequence. `why_not_reused` was found at admission, or says in words why nothing can be shared."""

    held: int = 0
    shared: int = 0
    hit_tokens: int = 0
    why_not_reused: WhyNotReused | str | None = None
