"""The data types in which a layer's cache describes itself: its rows, bytes, states and evictions. They are independent
of transformers' cache classes.

A *row* is the key and the value of one position in one kv head. Shapes: `[B, H_kv, S, D]`, with B = 1. In latent
attention (MLA) "keys" is the compressed latent and "values" the shared rotary key, exactly as transformers caches them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from engine.wire.pages import WhyNotReused
from engine.wire.records import Eviction

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, eq=False)
class HeldRows:
    """The rows that one layer holds now: keys `[1, H_kv, S, D_k]` and values `[1, H_kv, S, D_v]` of consecutive
    positions from `first` on.

    Where rows in between were evicted, `positions` `[H_kv, S]` gives the position of each row left, ascending in every
    head, and `first` is not used.
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
    """Bytes that the cache of one layer of one sequence takes.

    `stored`: rows that hold tokens, or recurrent state. Of these, `scales` are a codec's scales and offsets, and
    `residual` the rows that the codec has not quantised yet. `reserved`: all allocated storage, used or not; of this,
    `positions` are the bytes that note the position of each row kept. Not part of either: `dequantised` is the
    temporary copy that attention reads during a forward, `lost` what is kept in order to go back, `scores` the
    attention mass that an eviction rule has accumulated.
    """

    stored: int = 0
    reserved: int = 0
    scales: int = 0
    residual: int = 0
    positions: int = 0
    dequantised: int = 0
    lost: int = 0
    scores: int = 0


@dataclass(frozen=True, eq=False)
class EvictedRows:
    """Rows that one step evicted from one layer, still on the device: the host has not read yet which rows they are.

    `positions` `[H_kv, E]` of the evicted rows; `scores` `[H_kv, S]` of all rows before the eviction; `kept`
    `[H_kv, K]` and `evicted` `[H_kv, E]` are slots among these S rows, both ascending; `on_merit` `[H_kv, S]` marks the
    rows that no protection (sinks, recent rows, pins) kept. `is_per_head`: heads may have evicted different rows.
    `rule` gives the reason in words.
    """

    seq_id: int
    layer: int
    is_per_head: bool
    rule: str
    positions: torch.Tensor
    scores: torch.Tensor
    kept: torch.Tensor
    evicted: torch.Tensor
    on_merit: torch.Tensor

    @property
    def num_rows(self) -> int:
        """Number of evicted rows, summed over the heads if these may differ."""
        return self.positions.numel() if self.is_per_head else self.positions.shape[1]


# `Eviction` for whole pages: the page table is on the host, so it is known there at once which rows were evicted
Evicted = EvictedRows | Eviction


@dataclass(frozen=True, eq=False)
class StateMatrix:
    """One matrix `[R, C]` of a recurrent layer's state, whose size does not depend on the number of tokens, in its own
    dtype; `shape` is that of the whole state tensor of which the matrix is a part."""

    name: str
    values: torch.Tensor
    shape: tuple[int, ...]


def rows_from(rows: HeldRows | None, first_position: int) -> HeldRows | None:
    """The rows from `first_position` on, of rows with consecutive positions; None if there are none."""
    if rows is None or rows.stop <= first_position:
        return None
    start = max(0, first_position - rows.first)
    return HeldRows(rows.keys[:, :, start:], rows.values[:, :, start:], rows.first + start)


@dataclass(frozen=True)
class PageCounts:
    """Pages of one sequence: held, shared with other sequences, and the prompt tokens found by prefix. `why_not_reused`
    tells why no more tokens were found at admission, or why this cache can share nothing at all."""

    held: int = 0
    shared: int = 0
    hit_tokens: int = 0
    why_not_reused: WhyNotReused | str | None = None
