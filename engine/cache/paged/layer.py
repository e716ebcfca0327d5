"""One paged layer of one sequence, as transformers' forward calls it; it is its own handle."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine.cache.contract import HeldBytes, HeldRows, Pair
from engine.cache.layers.own import OwnLayer
from engine.cache.paged.plan import GroupPlan
from engine.cache.paged.rows import GatherBuffer, Reads
from engine.cache.paged.slots import HeldPages, held_positions, held_slots
from engine.cache.paged.store import PageStore
from engine.cache.paged.table import PageTable
from engine.cache.row_delta import RowDelta
from engine.cache.stored import StoredLayer
from engine.spec.codec import Part


class PagedLayer(OwnLayer):
    """One layer of a sequence whose rows are in pages. It writes and reads the slots that the store's plan gives.

    `tables` are those of the sequence, one for each group of layers. The list is the cache's own: `fork_from` replaces
    tables in it.
    """

    def __init__(self, store: PageStore, layer_index: int, group: int, tables: list[PageTable]) -> None:
        super().__init__()
        self.store, self.layer_index, self.group, self._tables = store, layer_index, group, tables
        # transformers sizes the masks of full and of sliding layers by the first layer of each kind
        self.is_sliding = store.groups[group].window is not None
        self.is_initialized = True

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> Pair:
        """Write rows `[B, H_kv, T, D]` to their slots. Returns all rows, `[B, H_kv, S + T, D]`, right-aligned; only the
        new ones where attention reads pages in place."""
        plan = self.write(keys, values)
        if plan.is_in_place:
            return keys, values
        read = []
        for stored in self.store.rows_of[self.layer_index]:
            rows = stored.read(plan.reads)
            heads, slots, dim = rows.shape
            read.append(rows.view(heads, self.store.batch, slots // self.store.batch, dim).transpose(0, 1))
        return read[0], read[1]

    def write(self, keys: torch.Tensor, values: torch.Tensor) -> GroupPlan:
        """Write rows `[B, H_kv, T, D]` to their slots; returns the forward's plan."""
        plan = self.store.plans[self.group]
        for stored, new in zip(self.store.rows_of[self.layer_index], (keys, values), strict=True):
            stored.write(plan.writes, new.transpose(0, 1).flatten(1, 2))
        return plan

    def append_by_sequence(
        self, keys: torch.Tensor, values: torch.Tensor, buffers: tuple[GatherBuffer, GatherBuffer], most_kept: int
    ) -> Iterator[Pair]:
        """As `append`, but yields the rows of one sequence after the other, `[1, H_kv, S + T, D]`: without padding, and
        without a copy where they are consecutive in the pool. Otherwise they are gathered; more than `most_kept` rows
        into `buffers`, which the next sequence overwrites."""
        plan = self.write(keys, values)
        return (self._read_in(buffers, most_kept, reads) for reads in plan.reads_of)

    def _read_in(self, buffers: tuple[GatherBuffer, GatherBuffer], most_kept: int, reads: Reads) -> Pair:
        is_long = isinstance(reads, HeldPages) and reads.count > most_kept
        keys, values = (
            rows.read(reads, room if is_long else None)[None]
            for rows, room in zip(self.store.rows_of[self.layer_index], buffers, strict=True)
        )
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        plan = self.store.plans[self.group]
        return plan.held + query_length, plan.first

    def get_seq_length(self) -> int:
        return self.store.longest

    # ---- LayerHandle ---------------------------------------------------------------------------------------------

    @property
    def _table(self) -> PageTable:
        return self._tables[self.group]

    def rows(self) -> HeldRows | None:
        return self.store.rows(self._table, self.layer_index) if self._table.num_held_tokens else None

    def rows_at(self, num_tokens: int | None = None, first_position: int | None = None) -> HeldRows | None:
        if first_position is None:
            return self.rows()
        first = max(first_position, self._table.first_held_position)
        return self.store.rows(self._table, self.layer_index, first) if first < self._table.num_tokens else None

    def newest(self, part: Part, first_position: int, num_tokens: int | None = None) -> torch.Tensor:
        return self.store.newest(self._table, part, first_position, [self.layer_index])[0]

    def row_positions(self) -> torch.Tensor | None:
        if not self._table.num_evicted_pages:
            return None
        keys = self.store.rows_of[self.layer_index][0]
        return held_positions(self._table, keys.device).expand(keys.num_heads, -1)

    def held_bytes(self) -> HeldBytes:
        """Bytes of the rows held and of their pages; shared pages count for each sharer."""
        table = self._table
        num_pages = len(table.page_ids) - table.num_slid_pages - table.num_evicted_pages
        return self.store.layer_bytes(self.layer_index, table.num_held_tokens, num_pages)

    def commit(self, written: RowDelta) -> RowDelta:
        window, size = self.store.groups[self.group].window, self.store.page_size
        if window is None:
            return written
        first, after = (max(0, n - window + 1) // size * size for n in (written.written.start, written.written.stop))
        return written if after == first else RowDelta(written.written, left_window=range(first, after))

    def num_final(self, part: Part, num_tokens: int) -> int:
        table = self._table
        has_evicted = table.num_evicted_pages or table.first_held_position
        return 0 if has_evicted else min(table.num_tokens, num_tokens)

    def exact_from(self, num_tokens: int, part: Part) -> int:
        keys, values = self.store.rows_of[self.layer_index]
        return 0 if (keys if part == "keys" else values).coding.is_exact else num_tokens

    def knows(self, num_tokens: int) -> bool:
        """Whether the rows are still there: they are written once, and a window must still hold those that a query at
        `num_tokens` reads."""
        window = self.store.groups[self.group].window
        first_read = max(0, num_tokens - (window or num_tokens) + 1)
        return window is None or self._table.first_held_position <= first_read

    def crop(self, num_tokens: int) -> int:
        """Nothing to do: the cache crops the tables, which all layers of a group share."""
        return 0

    def first_position(self) -> int:
        return self._table.first_held_position

    def write_rows(self, part: Part, heads: torch.Tensor, slots: torch.Tensor, numbers: torch.Tensor) -> None:
        """Overwrite rows; the cache has made these pages this sequence's own."""
        table, pair = self._table, self.store.rows_of[self.layer_index]
        held = held_slots(table, table.first_held_position, table.num_tokens, pair[0].device, as_tensor=True)
        pair[0 if part == "keys" else 1].write_heads(heads, held[slots], numbers)

    # ---- storing and restoring -----------------------------------------------------------------------------------

    def stored(self, num_tokens: int) -> StoredLayer | None:
        table, pair = self._table, self.store.rows_of[self.layer_index]
        first = table.first_held_position
        if num_tokens <= first:
            return None
        slots = held_slots(table, first, num_tokens, pair[0].device)
        keys, values = (part.written(slots) for part in pair)
        count = next(iter(keys.kept.values())).shape[2]
        scattered = self.row_positions()
        positions = None if scattered is None else scattered[:, :count]
        return StoredLayer(keys, values, num_tokens, count, pair[0].dtype, first, positions)

    def restore(self, stored: StoredLayer) -> None:
        """Write the stored rows into the pages that the cache has taken for them."""
        table, pair = self._table, self.store.rows_of[self.layer_index]
        slots = held_slots(table, table.first_held_position, table.num_tokens, pair[0].device)
        for rows, part in zip(pair, (stored.keys, stored.values), strict=True):
            rows.refill(slots, part)
            last = (table.page_ids[-1] + 1) * table.page_size
            rows.clear(slice(last - table.num_slack_tokens, last))
