"""The rows of a cache as a recorded step (a CUDA graph) reads and writes them: at fixed addresses.

Which row is written and which rows are read is computed on the device, from the position and the page table; these
tensors are overwritten in place between two replays. None of it may be a Python number: it would be recorded as a
constant, and wrong from the next step on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.cache.contract import Pair
from engine.cache.layers.handles import CountedStaticLayer
from engine.cache.layers.layer import GrowingLayer
from engine.cache.paged.cache import PagedLayer
from engine.cache.paged.rows import PageBlocks
from engine.cache.paged.store import PageStore
from engine.wire.pages import NULL_PAGE_ID

# index of a layer, new keys and values [B, H_kv, 1, D] -> the first rows of its buffers, [B, H_kv, bucket, D]
Append = Callable[[int, torch.Tensor, torch.Tensor], Pair]
# index of a layer, new keys and values -> the keys and values of the whole pool, [1, H_kv, slots, D]
Write = Callable[[int, torch.Tensor, torch.Tensor], Pair]
# K or V of the whole pool [1, H_kv, slots, D] -> the first rows of each sequence, [B, H_kv, bucket, D]
Gather = Callable[[torch.Tensor], torch.Tensor]
Layout = tuple[object, ...]  # what a recording depends on (kind, capacity, addresses): if it changes, record again


def fixed_rows(cache: Any, lengths: Sequence[int] | None) -> FixedRows | None:
    """The rows of the cache that the model is called with, if every layer keeps exact rows at fixed addresses; else
    None. `lengths` are those of a batch of sequences, None for one alone."""
    layers = cache.layers
    if all(type(layer) is PagedLayer for layer in layers):
        return PagedRows.of(layers[0].store)
    is_one_kind = {type(layer) for layer in layers} in ({GrowingLayer}, {CountedStaticLayer})
    if lengths is not None or not is_one_kind or not all(layer.is_initialized for layer in layers):
        return None
    return ContiguousRows(layers)


class ContiguousRows:
    """Rows of one sequence in contiguous buffers with spare capacity. `owner` is the object with whose life the buffers
    end; `capacity` is how many rows the sequence has place for, None where pages are taken as they are needed."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layers, self.owner = layers, layers[0]
        self.buffers = ContiguousBuffers([(layer.keys, layer.values) for layer in layers])
        self.capacity: int | None = min(layer.keys.shape[2] for layer in layers)
        self.layout: Layout = (type(self.owner).__name__, self.capacity, *addresses(self.buffers.pairs))

    def tables(self, bucket: int) -> torch.Tensor | None:
        """The page ids of each sequence now, `[B, pages]` on the host; None where there are no pages."""
        return None

    def clear_from(self, length: int) -> None:
        """Make the rows from `length` on finite: the step reads them, with a weight of zero, and zero times NaN is
        NaN."""
        for pair in self.buffers.pairs:
            for part in pair:
                part[:, :, length:].zero_()

    def count_row(self) -> None:
        """Count the row that the step has written in every layer."""
        for layer in self._layers:
            layer.count_row()


@dataclass(frozen=True, eq=False)
class ContiguousBuffers:
    """Buffers `[1, H_kv, capacity, D]` of each layer. A recording keeps them alive, and therefore references nothing
    else of the cache."""

    pairs: list[Pair]

    def appending(self, positions: torch.Tensor, table: torch.Tensor | None, bucket: int) -> Append:
        """A function that writes the rows at `positions` `[B, 1]` and returns the first `bucket` rows of each
        sequence."""
        place = positions[0]

        def append(layer: int, keys: torch.Tensor, values: torch.Tensor) -> Pair:
            held_keys, held_values = self.pairs[layer]
            held_keys.index_copy_(2, place, keys)
            held_values.index_copy_(2, place, values)
            return held_keys.narrow(2, 0, bucket), held_values.narrow(2, 0, bucket)

        return append

    def newest(self, positions: torch.Tensor, table: torch.Tensor | None) -> dict[int, Pair]:
        """The rows at `positions` `[B, 1]` of every layer, `[B, H_kv, 1, D]`."""
        place = positions[0]
        pairs = enumerate(self.pairs)
        return {n: (keys.index_select(2, place), values.index_select(2, place)) for n, (keys, values) in pairs}


class PagedRows:
    """Rows of some sequences in one pool, as `ContiguousRows` gives those of one. Columns beyond the end of a sequence
    are read from the null page, which is zero."""

    capacity: int | None = None

    def __init__(self, store: PageStore, pairs: list[Pair]) -> None:
        self.owner, self.buffers = store, PagedBuffers(pairs, store.page_size)
        self._page_ids = [table.page_ids for table in store.plans[0].tables]
        self.layout: Layout = ("paged", store.page_size, pairs[0][0].shape[1], *addresses(pairs))

    @classmethod
    def of(cls, store: PageStore) -> PagedRows | None:
        """The rows of a pool; None where pages are quantised, evicted in between, or leave a window."""
        pairs = [(keys.exact, values.exact) for _, (keys, values) in sorted(store.rows_of.items())]
        if len(store.groups) > 1 or store.groups[0].window is not None or not store.spec.retention.keeps_all:
            return None
        exact = [(keys, values) for keys, values in pairs if keys is not None and values is not None]
        return cls(store, exact) if len(exact) == len(pairs) else None

    def tables(self, bucket: int) -> torch.Tensor | None:
        width = -(-bucket // self.buffers.page_size)
        return torch.tensor([ids[:width] + [NULL_PAGE_ID] * (width - len(ids)) for ids in self._page_ids])

    def clear_from(self, length: int) -> None:
        """Nothing to do: the gathered rows were all written, or are those of the null page."""

    def count_row(self) -> None:
        """Nothing to do: the page tables counted the row when its page was taken."""


@dataclass(frozen=True, eq=False)
class PagedBuffers:
    """Buffers `[H_kv, slots, D]` of each layer, as `ContiguousBuffers`."""

    pairs: list[Pair]
    page_size: int

    def appending(self, positions: torch.Tensor, table: torch.Tensor | None, bucket: int) -> Append:
        assert table is not None
        write, gather = self.writing(positions, table), self.gathering(positions, table, bucket)

        def append(layer: int, keys: torch.Tensor, values: torch.Tensor) -> Pair:
            held_keys, held_values = write(layer, keys, values)
            return gather(held_keys), gather(held_values)

        return append

    def gathering(self, positions: torch.Tensor, table: torch.Tensor, bucket: int) -> Gather:
        """A function that copies the rows up to `positions` `[B, 1]` of every sequence into one tensor."""
        size, batch = self.page_size, len(positions)
        offsets, columns = (torch.arange(count, device=table.device) for count in (size, bucket))
        slots = (table[:, :, None] * size + offsets).flatten(1)[:, :bucket]
        reads = torch.where(columns <= positions, slots, NULL_PAGE_ID * size).flatten()

        def gather(held: torch.Tensor) -> torch.Tensor:
            rows = held[0].index_select(1, reads)
            return rows.view(rows.shape[0], batch, bucket, rows.shape[2]).transpose(0, 1)

        return gather

    def writing(self, positions: torch.Tensor, table: torch.Tensor) -> Write:
        """A function that writes the rows at `positions` `[B, 1]` and returns K and V of the whole pool."""
        writes = self._slots(positions, table)

        def write(layer: int, keys: torch.Tensor, values: torch.Tensor) -> Pair:
            held_keys, held_values = self.pairs[layer]
            for held, new in ((held_keys, keys), (held_values, values)):
                held.index_copy_(1, writes, new.transpose(0, 1).flatten(1, 2))
            return held_keys[None], held_values[None]

        return write

    def newest(self, positions: torch.Tensor, table: torch.Tensor | None) -> dict[int, Pair]:
        assert table is not None
        slots = self._slots(positions, table)

        def read(held: torch.Tensor) -> torch.Tensor:
            return held.index_select(1, slots).transpose(0, 1)[:, :, None]

        return {layer: (read(keys), read(values)) for layer, (keys, values) in enumerate(self.pairs)}

    def _slots(self, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """Slots in the pool `[B]` of the rows at `positions` `[B, 1]`."""
        size = self.page_size
        return (table.gather(1, positions // size) * size + positions % size)[:, 0]

    def blocks(self, positions: torch.Tensor, table: torch.Tensor) -> PageBlocks:
        """The pages that queries at `positions` `[B, 1]` read in place, as blocks of a flex attention mask."""
        return PageBlocks.of(table, positions, self.pairs[0][0].shape[1] // self.page_size, self.page_size)


def addresses(pairs: Sequence[Pair]) -> tuple[int, ...]:
    """The memory addresses of K and V of every layer."""
    return tuple(part.data_ptr() for pair in pairs for part in pair)


# the rows of all sequences of one forward, at fixed addresses, and the K and V tensors of every layer
FixedRows = ContiguousRows | PagedRows
Buffers = ContiguousBuffers | PagedBuffers
