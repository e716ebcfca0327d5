"""The rows of a cache as a step sees them that is recorded once and replayed: at addresses that stay.

Where a row is written and which rows are read is worked out of tensors on the device, the position and the page table,
which are changed in place between two replays. Nothing of it is a number in Python: that would be baked into the
recording, and wrong from the next step on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from engine.cache.contract import Pair
from engine.cache.layers.growing import GrowingLayer
from engine.cache.layers.handles import CountedStaticLayer
from engine.cache.paged.blocks import PageBlocks
from engine.cache.paged.layer import PagedLayer
from engine.cache.paged.store import PageStore
from engine.wire.page_events import NULL_PAGE_ID

# index of a layer, new keys and values [B, H_kv, 1, D] -> the first rows of its room, [B, H_kv, bucket, D]
Append = Callable[[int, torch.Tensor, torch.Tensor], Pair]
# index of a layer, new keys and values -> the keys and values of the whole pool, [1, H_kv, slots, D]
Write = Callable[[int, torch.Tensor, torch.Tensor], Pair]
# K or V of the whole pool -> the first rows of each sequence, [B, H_kv, bucket, D]
Gather = Callable[[torch.Tensor], torch.Tensor]
Layout = tuple[object, ...]  # all of it that a recording depends on: kind, room, addresses


class Buffers(Protocol):
    """K and V of every layer, and nothing else of their cache: a recording holds them as long as it lives."""

    def appending(self, positions: torch.Tensor, table: torch.Tensor | None, bucket: int) -> Append:
        """How a step writes rows at `positions` `[B, 1]` and reads the first `bucket` rows, out of these tensors."""
        ...

    def newest(self, positions: torch.Tensor, table: torch.Tensor | None) -> dict[int, Pair]:
        """The rows at `positions` `[B, 1]` of every layer, `[B, H_kv, 1, D]`."""
        ...


class FixedRows(Protocol):
    """The rows of the sequences of one forward. `owner` is what the buffers live and die with; `room` is how many rows
    a sequence has place for, None where pages are taken as they are needed."""

    @property
    def owner(self) -> object: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def room(self) -> int | None: ...

    @property
    def buffers(self) -> Buffers: ...

    def tables(self, bucket: int) -> torch.Tensor | None:
        """Which pages the sequences have now, `[B, pages]` on the host; None where there are no pages."""
        ...

    def prepare(self, length: int) -> None:
        """Rows from `length` on hold numbers, whatever they are: they are read, with a weight of zero."""
        ...

    def count(self) -> None:
        """A row was written behind those of every layer."""
        ...


def fixed_rows(cache: Any, lengths: Sequence[int] | None) -> FixedRows | None:
    """The rows of a cache of the model, if every layer keeps exact rows where they are; None of any other."""
    layers = cache.layers
    if all(type(layer) is PagedLayer for layer in layers):
        return PagedRows.of(layers[0].store)
    is_one_kind = {type(layer) for layer in layers} in ({GrowingLayer}, {CountedStaticLayer})
    if lengths is not None or not is_one_kind or not all(layer.is_initialized for layer in layers):
        return None
    return RoomRows(layers)


class RoomRows:
    """Rows of one sequence in buffers with room to spare."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layers, self.owner = layers, layers[0]
        self.buffers = RoomBuffers([(layer.keys, layer.values) for layer in layers])
        self.room: int | None = min(layer.keys.shape[2] for layer in layers)
        self.layout: Layout = (type(self.owner).__name__, self.room, *addresses(self.buffers.pairs))

    def tables(self, bucket: int) -> torch.Tensor | None:
        return None

    def prepare(self, length: int) -> None:
        for pair in self.buffers.pairs:
            for part in pair:
                part[:, :, length:].zero_()

    def count(self) -> None:
        for layer in self._layers:
            layer.count_row()


@dataclass(frozen=True, eq=False)
class RoomBuffers:
    """Buffers `[1, H_kv, capacity, D]` of each layer."""

    pairs: list[Pair]

    def appending(self, positions: torch.Tensor, table: torch.Tensor | None, bucket: int) -> Append:
        place = positions[0]

        def append(layer: int, keys: torch.Tensor, values: torch.Tensor) -> Pair:
            held_keys, held_values = self.pairs[layer]
            held_keys.index_copy_(2, place, keys)
            held_values.index_copy_(2, place, values)
            return held_keys.narrow(2, 0, bucket), held_values.narrow(2, 0, bucket)

        return append

    def newest(self, positions: torch.Tensor, table: torch.Tensor | None) -> dict[int, Pair]:
        place = positions[0]
        pairs = enumerate(self.pairs)
        return {n: (keys.index_select(2, place), values.index_select(2, place)) for n, (keys, values) in pairs}


class PagedRows:
    """Rows of some sequences in one pool; what stands behind a sequence is read from the null page, which is zero."""

    room: int | None = None

    def __init__(self, store: PageStore, pairs: list[Pair]) -> None:
        self.owner, self.buffers = store, PagedBuffers(pairs, store.page_size)
        self._page_ids = [table.page_ids for table in store.plans[0].tables]
        self.layout: Layout = ("paged", store.page_size, pairs[0][0].shape[1], *addresses(pairs))

    @classmethod
    def of(cls, store: PageStore) -> PagedRows | None:
        """None where pages are coded, were dropped from between, or leave a window."""
        pairs = [(keys.exact, values.exact) for _, (keys, values) in sorted(store.rows_of.items())]
        if len(store.groups) > 1 or store.groups[0].window is not None or not store.spec.retention.keeps_all:
            return None
        exact = [(keys, values) for keys, values in pairs if keys is not None and values is not None]
        return cls(store, exact) if len(exact) == len(pairs) else None

    def tables(self, bucket: int) -> torch.Tensor | None:
        width = -(-bucket // self.buffers.page_size)
        return torch.tensor([ids[:width] + [NULL_PAGE_ID] * (width - len(ids)) for ids in self._page_ids])

    def prepare(self, length: int) -> None:
        """Nothing is read of gathered pages that was not written."""

    def count(self) -> None:
        """The tables have counted it when they took the room."""


@dataclass(frozen=True, eq=False)
class PagedBuffers:
    """Buffers `[H_kv, slots, D]` of each layer."""

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
        """How a step copies together the rows up to `positions` `[B, 1]`."""
        size, batch = self.page_size, len(positions)
        offsets, columns = (torch.arange(count, device=table.device) for count in (size, bucket))
        slots = (table[:, :, None] * size + offsets).flatten(1)[:, :bucket]
        reads = torch.where(columns <= positions, slots, NULL_PAGE_ID * size).flatten()

        def gather(held: torch.Tensor) -> torch.Tensor:
            rows = held[0].index_select(1, reads)
            return rows.view(rows.shape[0], batch, bucket, rows.shape[2]).transpose(0, 1)

        return gather

    def writing(self, positions: torch.Tensor, table: torch.Tensor) -> Write:
        """How a step writes rows at `positions` `[B, 1]`, and hands over the whole pool."""
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
        """Where the rows at `positions` `[B, 1]` lie in the pool, `[B]`."""
        size = self.page_size
        return (table.gather(1, positions // size) * size + positions % size)[:, 0]

    def blocks(self, positions: torch.Tensor, table: torch.Tensor) -> PageBlocks:
        """The pages that queries at `positions` `[B, 1]` read where they lie."""
        return PageBlocks.of(table, positions, self.pairs[0][0].shape[1] // self.page_size, self.page_size)


def addresses(pairs: Sequence[Pair]) -> tuple[int, ...]:
    """Where K and V of every layer begin."""
    return tuple(part.data_ptr() for pair in pairs for part in pair)
