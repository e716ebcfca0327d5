"""What the rest of the program may ask of the cache of one layer, and the answers; no class of transformers.

Shapes: `[B, H_kv, S, D]`, with B = 1. In latent attention (MLA) "keys" is the compressed latent and "values" the
shared rotary key, exactly as transformers caches them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from engine.spec.codec import Part
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


class InPieces(Protocol):
    """Numbers that are no tensor yet: read as far as they are asked for, so that no second copy of them is made."""

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def shape(self) -> torch.Size: ...

    def pieces(self, num_bytes: int) -> Iterator[torch.Tensor]:
        """All of it in order, so many bytes at a time."""
        ...


class RowsInPieces(InPieces, Protocol):
    """Rows `[1, H_kv, S, …]` of a layer."""

    def of_heads(self, heads: Sequence[int]) -> RowsInPieces:
        """Of these alone, counted among its own."""
        ...

    def picked(self, rows: slice | torch.Tensor) -> torch.Tensor:
        """Some rows of all heads, `[H_kv, …]`."""
        ...


@dataclass(frozen=True, eq=False)
class Scattered:
    """Rows `[1, H_kv, S, …]` of `heads` that lie in `slots` `[S]` of a `buffer` `[H, N, …]`: gathered as far as they
    are asked for, so that a cache in pages is written without a second copy of it."""

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
        return Scattered(self.buffer, self.slots, tuple(self.heads[head] for head in heads))

    def picked(self, rows: slice | torch.Tensor) -> torch.Tensor:
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


@dataclass(frozen=True, eq=False)
class StoredPart:
    """K or V of one layer as it is kept. What is `kept` is named by what it is: `rows` as they were computed
    `[1, H_kv, S, D]`; of the first `num_coded` rows instead what `codec` wrote, and then the others in `exact`.

    ============================ =============================================================================
    exact                        `rows`
    int8, fp8-token-head, -max   `codes` `[1, H_kv, C, D]`, `scales` `[1, H_kv, C, …]`
    fp8, fp8-head                `codes`, `scale` `[1, 1 or H_kv, 1, 1]`
    kivi-b                       `words`, `scales`, `offsets`
    transformers-fp8             `codes`, `scale` `[1]`
    ============================ =============================================================================

    `quantised_at` is the number of rows at the end of the prompt, when what waited for it was coded; None before.
    """

    kept: Mapping[str, torch.Tensor | Scattered]
    codec: str = "exact"
    num_coded: int = 0
    quantised_at: int | None = None

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """What is kept, gathered where it lies scattered."""
        return {
            name: each if isinstance(each, torch.Tensor) else each.picked(slice(None))[None]
            for name, each in self.kept.items()
        }


@dataclass(frozen=True, eq=False)
class StoredLayer:
    """What one layer keeps of `num_tokens` tokens, as it lies in memory: enough to make a layer that goes on as it
    would, bit for bit, unless `why_not` says what is missing. `dtype` is that of the rows attention reads; `memory` is
    what a rule remembers of them, `sinks` the keys of the sinks before they were rotated; `hidden` and `pinned` say of
    each head and position `[H_kv, P]` whether it was marked so by hand, those from P on were not."""

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


@dataclass(frozen=True)
class StoredTable:
    """The page table of a sequence in one group of layers; page 0 stands where one left the window or was dropped."""

    layers: tuple[int, ...]
    page_size: int
    page_ids: tuple[int, ...]
    window: int | None = None


@dataclass(frozen=True, eq=False)
class StoredCache:
    """The cache of a sequence as it is kept: layers that have rows, by index, and where they lie; of recurrent layers
    their states by name. `why_no_states`: the states of then are not known, without which nothing goes on."""

    num_tokens: int
    layers: dict[int, StoredLayer]
    prompt_ended_at: int | None = None
    tables: tuple[StoredTable, ...] = ()
    edited_from: int | None = None  # the first position that was changed by hand; None where none was
    states: Mapping[int, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    why_no_states: str = ""


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
class StateMatrix:
    """A part of the state of one layer, of a size that no token changes: `[R, C]`, as it lies in memory; `shape` is
    that of the whole tensor which it is of."""

    name: str
    values: torch.Tensor
    shape: tuple[int, ...]


def stored_rows(rows: HeldRows | None, num_tokens: int, why_not: str = "") -> StoredLayer | None:
    """A layer whose rows stand in one run and are kept as they are."""
    count = 0 if rows is None else min(rows.keys.shape[2], num_tokens - rows.first)
    if rows is None or count <= 0:
        return None
    keys, values = (StoredPart({"rows": part[:, :, :count]}) for part in (rows.keys, rows.values))
    return StoredLayer(keys, values, num_tokens, count, rows.keys.dtype, rows.first, why_not=why_not)


NO_ROWS = range(0)


@dataclass(frozen=True, slots=True, eq=False)
class RowDelta:
    """What happened to the rows of one layer, in positions: rows `written`; older rows whose numbers changed, because a
    codec quantised their group or a sink was rotated, apart for K and V; and rows that went, `evicted` `[H_kv, E]` by
    a rule or `left_window` before the rest."""

    written: range
    rewritten_keys: range = NO_ROWS
    rewritten_values: range = NO_ROWS
    left_window: range = NO_ROWS
    evicted: tuple[torch.Tensor, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether rows were written and nothing else."""
        return not (self.rewritten_keys or self.rewritten_values or self.left_window or self.evicted)

    def rewritten(self, part: Part) -> range:
        """Older rows of K or of V whose numbers changed."""
        return self.rewritten_keys if part == "keys" else self.rewritten_values

    def touches(self, position: int) -> bool:
        """Whether anything happened to the row of a position."""
        runs = (self.written, self.rewritten_keys, self.rewritten_values, self.left_window)
        return any(position in run for run in runs) or any(bool((went == position).any()) for went in self.evicted)

    def then(self, later: RowDelta) -> RowDelta:
        """Both in one; of rows rewritten at least these."""
        if self.is_plain and later.is_plain:
            return RowDelta(hull(self.written, later.written))
        return RowDelta(
            hull(self.written, later.written),
            hull(self.rewritten_keys, later.rewritten_keys),
            hull(self.rewritten_values, later.rewritten_values),
            hull(self.left_window, later.left_window),
            self.evicted + later.evicted,
        )


def hull(one: range, other: range) -> range:
    """The shortest run that has all of both."""
    if not (one and other):
        return one or other
    return range(min(one.start, other.start), max(one.stop, other.stop))


def rows_from(rows: HeldRows | None, first_position: int) -> HeldRows | None:
    """The rows of one run from a position on; None where there are none."""
    if rows is None or rows.stop <= first_position:
        return None
    start = max(0, first_position - rows.first)
    return HeldRows(rows.keys[:, :, start:], rows.values[:, :, start:], rows.first + start)


def slid(written: RowDelta, num_kept: int) -> RowDelta:
    """The same, where the latest rows alone are kept."""
    before, after = (max(0, count - num_kept) for count in (written.written.start, written.written.stop))
    return written if after == before else RowDelta(written.written, left_window=range(before, after))


@dataclass(frozen=True)
class PageCounts:
    """Pages of one sequence. `why_not_reused` was found at admission, or says in words why nothing can be shared."""

    held: int = 0
    shared: int = 0
    hit_tokens: int = 0
    why_not_reused: WhyNotReused | str | None = None


class LayerHandle(Protocol):
    """One layer of one sequence's cache. There is one class for each kind of layer; nobody asks which it is.

    `keeps_all_rows`: it holds every row, in order and as it was computed, and nothing else, so that another layout can
    be filled from it. `takes_rows`: rows computed elsewhere may be written to it. `has_state`: beside rows it keeps
    what only moves forward, a recurrent state or an indexer's keys.
    """

    keeps_all_rows: bool
    takes_rows: bool
    has_state: bool

    def rows(self) -> HeldRows | None:
        """The rows held, as attention reads them, as views where they are exact; None where there is no K and V."""
        ...

    def rows_at(self, num_tokens: int) -> HeldRows | None:
        """The rows when the sequence had so many tokens, as far as `knows` says; later ones may stand behind them."""
        ...

    def newest_rows(self, first_position: int) -> HeldRows | None:
        """The rows from a position on, none of which was dropped yet; None where there are none of them."""
        ...

    def row_positions(self) -> torch.Tensor | None:
        """Positions `[H_kv, S]` of the rows held; None where they are one run."""
        ...

    def held_bytes(self) -> HeldBytes:
        """What it takes."""
        ...

    def states(self) -> tuple[StateMatrix, ...]:
        """What it keeps beside rows that moves on with every token and does not grow."""
        ...

    def reserve(self, num_new: int) -> None:
        """Room for `num_new` more rows; a failed allocation changes nothing."""
        ...

    def commit(self, written: RowDelta) -> RowDelta:
        """A step is done: what it did to the rows, where it did more than `written`."""
        ...

    def num_final(self, part: Part) -> int:
        """How many rows, from the first held on, no later step will write anew; they may be dropped."""
        ...

    def knows(self, num_tokens: int) -> bool:
        """Whether `rows_at` that many tokens are those that stood there then, bit for bit."""
        ...

    def can_crop(self, num_tokens: int) -> bool:
        """Whether `crop` to so many tokens is exact."""
        ...

    def crop(self, num_tokens: int) -> int:
        """Back to the state after `num_tokens` tokens; returns how many dropped rows were restored."""
        ...

    def stored(self, num_tokens: int) -> StoredLayer | None:
        """What is kept of the first `num_tokens` tokens, as far as `knows` says; None where there are no rows."""
        ...

    def restore(self, stored: StoredLayer) -> None:
        """Fill the layer, which is empty, with what `stored` gave in another one of its kind."""
        ...

    def stored_states(self) -> dict[str, torch.Tensor]:
        """A copy of what it keeps of a recurrence, by name; a step writes to the tensors themselves."""
        ...

    def restore_states(self, states: Mapping[str, torch.Tensor]) -> None:
        """Keep what `stored_states` gave of another layer of its kind; this one has read no token."""
        ...

    def first_position(self) -> int:
        """Where the first row held stands, if they are one run."""
        ...

    def write_rows(self, part: Part, heads: torch.Tensor, slots: torch.Tensor, numbers: torch.Tensor) -> None:
        """Put numbers `[N, T, D]` in the place of those held of kv heads `[N]` in slots `[N, T]`, written as the layer
        writes rows."""
        ...
