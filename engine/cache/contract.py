"""How a layer's cache describes itself: its rows, bytes, states and evictions, what a step did to its rows, and its
contents as stored. These types are independent of transformers' cache classes.

A *row* is the key and the value of one position in one kv head. Shapes: `[B, H_kv, S, D]`, with B = 1. In latent
attention (MLA) "keys" is the compressed latent and "values" the shared rotary key, exactly as transformers caches them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from engine.spec.codec import Part
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


def rows_from(rows: HeldRows | None, first_position: int) -> HeldRows | None:
    """The rows from `first_position` on, of rows with consecutive positions; None if there are none."""
    if rows is None or rows.stop <= first_position:
        return None
    start = max(0, first_position - rows.first)
    return HeldRows(rows.keys[:, :, start:], rows.values[:, :, start:], rows.first + start)


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


def matrices_of(kind: str, tensor: torch.Tensor) -> list[StateMatrix]:
    """The first sequence of a tensor `[B, …]` as matrices, one for each index of its leading dimensions."""
    first = tensor[0] if tensor.dim() > 2 else tensor[:1]
    matrices = first.flatten(0, -3) if first.dim() > 2 else first[None]
    return [StateMatrix(kind, matrix, tuple(tensor.shape)) for matrix in matrices]


@dataclass(frozen=True)
class PageCounts:
    """Pages of one sequence: held, shared with other sequences, and the prompt tokens found by prefix. `why_not_reused`
    tells why no more tokens were found at admission, or why this cache can share nothing at all."""

    held: int = 0
    shared: int = 0
    hit_tokens: int = 0
    why_not_reused: WhyNotReused | str | None = None


# ---- what one step did to the rows of one layer ---------------------------------------------------------------------


NO_ROWS = range(0)


@dataclass(frozen=True, slots=True, eq=False)
class RowDelta:
    """What happened to the rows of one layer, given in positions.

    `written`: new rows. `rewritten_keys`, `rewritten_values`: older rows whose numbers changed because a codec
    quantised their group or a sink was rotated again. `evicted`: tensors `[H_kv, E]` of rows that an eviction rule
    evicted. `left_window`: rows that fell out of a sliding window.
    """

    written: range
    rewritten_keys: range = NO_ROWS
    rewritten_values: range = NO_ROWS
    left_window: range = NO_ROWS
    evicted: tuple[torch.Tensor, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether rows were written and nothing else happened."""
        return not (self.rewritten_keys or self.rewritten_values or self.left_window or self.evicted)

    def rewritten(self, part: Part) -> range:
        """Older rows of K or of V whose numbers changed."""
        return self.rewritten_keys if part == "keys" else self.rewritten_values

    def touches(self, position: int) -> bool:
        """Whether anything happened to the row of a position."""
        runs = (self.written, self.rewritten_keys, self.rewritten_values, self.left_window)
        return any(position in run for run in runs) or any(bool((went == position).any()) for went in self.evicted)

    def then(self, later: RowDelta) -> RowDelta:
        """This delta followed by `later`, as one. Runs are joined to the shortest run that covers both, so more rows
        than were changed may count as rewritten."""
        if self.is_plain and later.is_plain:
            return RowDelta(hull(self.written, later.written))
        return RowDelta(
            hull(self.written, later.written),
            hull(self.rewritten_keys, later.rewritten_keys),
            hull(self.rewritten_values, later.rewritten_values),
            hull(self.left_window, later.left_window),
            self.evicted + later.evicted,
        )


def combined_by_layer(earlier: list[RowDelta], later: list[RowDelta]) -> list[RowDelta]:
    """The deltas of two successive steps as one for each layer. Where all layers did the same, as in append-only
    caches, it is computed once."""
    if later and earlier.count(earlier[0]) == later.count(later[0]) == len(later):
        return [earlier[0].then(later[0])] * len(later)
    return [mine.then(after) for mine, after in zip(earlier, later, strict=True)]


def hull(one: range, other: range) -> range:
    """The shortest range that covers both ranges."""
    if not (one and other):
        return one or other
    return range(min(one.start, other.start), max(one.stop, other.stop))


def windowed(written: RowDelta, num_kept: int) -> RowDelta:
    """The same delta for a layer that keeps only the latest `num_kept` rows: older ones have left its window."""
    before, after = (max(0, count - num_kept) for count in (written.written.start, written.written.stop))
    return written if after == before else RowDelta(written.written, left_window=range(before, after))


# ---- contents as stored in memory: written to a snapshot file, or put into another cache of the same mode -----------


@dataclass(frozen=True, eq=False)
class StoredCache:
    """The contents of a sequence's cache: `layers` that have rows, by layer index; the page `tables`; and the `states`
    of recurrent layers by name. `why_no_states`, if not empty, says why these states are missing: the sequence cannot
    be continued without them."""

    num_tokens: int
    layers: dict[int, StoredLayer]
    prompt_ended_at: int | None = None
    tables: tuple[StoredTable, ...] = ()
    edited_from: int | None = None  # the first position that was changed by hand; None where none was
    states: Mapping[int, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    why_no_states: str = ""


@dataclass(frozen=True)
class StoredTable:
    """The page table of a sequence in one group of layers; page id 0 stands for a page that left the window or was
    evicted."""

    layers: tuple[int, ...]
    page_size: int
    page_ids: tuple[int, ...]
    window: int | None = None


@dataclass(frozen=True, eq=False)
class StoredLayer:
    """What one layer keeps of `num_tokens` tokens: enough to make a layer that continues from it bit for bit, unless
    `why_not` says what is missing.

    `num_rows` rows from position `first` on, or at `positions`. `dtype` is that of the rows that attention reads;
    `memory` the state of the eviction rule; `sinks` the keys of the sinks before rotation; `hidden` and `pinned` masks
    `[H_kv, P]` over positions of rows so marked by hand (positions from P on are not marked).
    """

    keys: StoredPart
    values: StoredPart
    num_tokens: int
    num_rows: int
    dtype: torch.dtype
    first: int = 0
    positions: torch.Tensor | None = None
    memory: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    why_not: str = ""
    hidden: torch.Tensor | None = None
    pinned: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class StoredPart:
    """K or V of one layer as stored.

    `kept` has the tensors by name: exact `rows` `[1, H_kv, S, D]`; or, where `codec` has quantised the first
    `num_coded` rows, its tensors of the table below for these, and `exact` for the other rows.

    ============================ =============================================================================
    exact                        `rows`
    int8, fp8-token-head, -max   `codes` `[1, H_kv, C, D]`, `scales` `[1, H_kv, C, …]`
    fp8, fp8-head                `codes`, `scale` `[1, 1 or H_kv, 1, 1]`
    kivi-b                       `words`, `scales`, `offsets`
    transformers-fp8             `codes`, `scale` `[1]`
    ============================ =============================================================================

    `quantised_at` is the number of rows at the end of the prompt, which is when a codec that waits for it quantised
    them; None before that.
    """

    kept: Mapping[str, torch.Tensor | Scattered]
    codec: str = "exact"
    num_coded: int = 0
    quantised_at: int | None = None

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors by name; rows scattered over pages are gathered."""
        return {
            name: each if isinstance(each, torch.Tensor) else each.picked(slice(None))[None]
            for name, each in self.kept.items()
        }


def stored_rows(rows: HeldRows | None, num_tokens: int, why_not: str = "") -> StoredLayer | None:
    """The contents of a layer whose rows are consecutive and stored exactly: its rows of the first `num_tokens` tokens;
    None if it has none."""
    count = 0 if rows is None else min(rows.keys.shape[2], num_tokens - rows.first)
    if rows is None or count <= 0:
        return None
    keys, values = (StoredPart({"rows": part[:, :, :count]}) for part in (rows.keys, rows.values))
    return StoredLayer(keys, values, num_tokens, count, rows.keys.dtype, rows.first, why_not=why_not)


class InPieces(Protocol):
    """Numbers that are gathered only piece by piece while they are read, so that no second copy of all of them is
    made."""

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def pieces(self, num_bytes: int) -> Iterator[torch.Tensor]:
        """All numbers in order, about `num_bytes` at a time."""
        ...


@dataclass(frozen=True, eq=False)
class Scattered:
    """Rows `[1, H_kv, S, …]` of `heads` in `slots` `[S]` of a pool's `buffer` `[H, N, …]`. They are gathered only as
    far as they are read, so that a paged cache is written without a second copy of it."""

    buffer: torch.Tensor
    slots: torch.Tensor
    heads: tuple[int, ...]

    @property
    def dtype(self) -> torch.dtype:
        return self.buffer.dtype

    @property
    def shape(self) -> torch.Size:
        return torch.Size((1, len(self.heads), len(self.slots), *self.buffer.shape[2:]))

    def of_heads(self, heads: Sequence[int]) -> Scattered:
        """The rows of some heads, given as indices among the heads of this object."""
        return Scattered(self.buffer, self.slots, tuple(self.heads[head] for head in heads))

    def picked(self, rows: slice | torch.Tensor) -> torch.Tensor:
        """Some rows of all heads as a tensor, `[H_kv, …]`."""
        heads = torch.tensor(self.heads, device=self.slots.device)[:, None]
        slots = self.slots[rows]
        if len(self.heads) == len(self.buffer):
            return self.buffer.index_select(1, slots)
        return self.buffer[heads, slots]

    def pieces(self, num_bytes: int) -> Iterator[torch.Tensor]:
        for head in self.heads:
            matrix = self.buffer[head]
            count = max(1, num_bytes // max(1, matrix[0].numel() * matrix.element_size()))
            for start in range(0, len(self.slots), count):
                yield matrix.index_select(0, self.slots[start : start + count])
