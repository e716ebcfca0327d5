"""The contents of a cache as stored in memory: what is written to a snapshot file, or put into another cache of the
same mode.

Shapes: `[B, H_kv, S, D]`, with B = 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from engine.cache.contract import HeldRows


class InPieces(Protocol):
    """Numbers that are gathered only piece by piece while they are read, so that no second copy of all of them is
    made."""

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def shape(self) -> torch.Size: ...

    def pieces(self, num_bytes: int) -> Iterator[torch.Tensor]:
        """All numbers in order, about `num_bytes` at a time."""
        ...


class RowsInPieces(InPieces, Protocol):
    """Rows `[1, H_kv, S, …]` of a layer that are gathered piece by piece."""

    def of_heads(self, heads: Sequence[int]) -> RowsInPieces:
        """The rows of some heads, given as indices among the heads of this object."""
        ...

    def picked(self, rows: slice | torch.Tensor) -> torch.Tensor:
        """Some rows of all heads as a tensor, `[H_kv, …]`."""
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


@dataclass(frozen=True)
class StoredTable:
    """The page table of a sequence in one group of layers; page id 0 stands for a page that left the window or was
    evicted."""

    layers: tuple[int, ...]
    page_size: int
    page_ids: tuple[int, ...]
    window: int | None = None


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


def stored_rows(rows: HeldRows | None, num_tokens: int, why_not: str = "") -> StoredLayer | None:
    """The contents of a layer whose rows are consecutive and stored exactly: its rows of the first `num_tokens` tokens;
    None if it has none."""
    count = 0 if rows is None else min(rows.keys.shape[2], num_tokens - rows.first)
    if rows is None or count <= 0:
        return None
    keys, values = (StoredPart({"rows": part[:, :, :count]}) for part in (rows.keys, rows.values))
    return StoredLayer(keys, values, num_tokens, count, rows.keys.dtype, rows.first, why_not=why_not)
