"""What a cache keeps of its rows and states, as it lies in memory: written to a file, or taken up by another cache.

Shapes: `[B, H_kv, S, D]`, with B = 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from engine.cache.contract import HeldRows


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


def stored_rows(rows: HeldRows | None, num_tokens: int, why_not: str = "") -> StoredLayer | None:
    """A layer whose rows stand in one run and are kept as they are."""
    count = 0 if rows is None else min(rows.keys.shape[2], num_tokens - rows.first)
    if rows is None or count <= 0:
        return None
    keys, values = (StoredPart({"rows": part[:, :, :count]}) for part in (rows.keys, rows.values))
    return StoredLayer(keys, values, num_tokens, count, rows.keys.dtype, rows.first, why_not=why_not)
