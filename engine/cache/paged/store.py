"""All pages of a session: one pool for each group of layers, the K and V in its pages, and the host tier.

The rows of a layer are `[H_kv, pages * page_size, D]`: a page is a run of `page_size` slots, and slot
`page_id * page_size + offset` holds one row, exact or quantised. Heads are the first axis so that a table of
consecutive pages is read without a copy. Writing scatters new rows to slots; reading gathers slots, right-aligned when
sequences of a batch differ in length, with the null page (always zero) as padding.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Container, Iterable, Iterator
from collections.abc import Sequence as Listing
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from engine.cache.contract import HeldBytes, HeldRows
from engine.cache.paged.host import HostIndex, num_host_pages
from engine.cache.paged.pool import PagePool
from engine.cache.paged.rows import GroupPlan, PageRows, held_pages, held_positions
from engine.cache.paged.table import PageTable
from engine.device import check_room, free_bytes
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.predict.bytes import page_bytes, why_no_sharing
from engine.predict.capacity import is_pageable, pool_pages, window_of
from engine.spec.cache import CacheSpec
from engine.spec.codec import Part
from engine.wire.pages import KEPT, PageCommitted, PageCopied, PageEvent, PageEvicted, PoolStep, Tier

MAX_TURNOVER = 16_384  # events of pages that became findable or were evicted, which the store remembers


@dataclass(eq=False)
class PageGroup:
    """Layers that share page tables: one pool, one table per sequence. `window` is the sliding window, None for full
    attention."""

    pool: PagePool
    layers: tuple[LayerGeometry, ...]
    window: int | None
    tables: list[PageTable]

    @cached_property
    def layer_indices(self) -> frozenset[int]:
        """The indices of its layers in the model."""
        return frozenset(layer.index for layer in self.layers)


class PageStore:
    """All pages of a session: pools, K and V buffers, the host tier. Its only owner is the session."""

    def __init__(
        self, spec: CacheSpec, geometry: CacheGeometry, max_length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Raises `InputError` for impossible sizes before anything is allocated."""
        spec.codec.check(geometry)
        self.spec = spec
        self.geometry, self._layers = geometry, pageable(geometry)
        self.page_size = spec.page_size
        self.num_pages = pool_pages(spec, max_length)
        self._pool_bytes = self.num_pages * self.bytes_per_page(dtype)
        check_room(f"A pool of {self.num_pages:,} pages", self._pool_bytes, free_bytes(device))
        windows = sorted({layer.window for layer in geometry.attention_layers if layer.kind == "sliding"}, key=str)
        self.groups: list[PageGroup] = []
        for window in (None, *windows):
            layers = tuple(la for la in pageable(geometry) if window_of(la) == window)
            if layers:
                pool = PagePool(self.num_pages, self.page_size, replaces_duplicates=spec.replace_duplicates)
                self.groups.append(PageGroup(pool, layers, window, []))
        if not self.groups:
            raise InputError("This architecture keeps no K and V, so there is nothing to page: use the dynamic cache.")
        self.host = self._host_tier(dtype, device)
        with torch.inference_mode():
            self.rows_of = {layer.index: self._buffers(layer, self.num_pages, dtype, device) for layer in self._layers}
            self.host_rows = (
                {la.index: self._buffers(la, self.host.num_pages, dtype, torch.device("cpu")) for la in self._layers}
                if self.host
                else {}
            )
        self._findable: list[tuple[int, PageCommitted]] = []  # (step at which a page became findable, its entry)
        self._num_noted = [0] * len(self.groups)  # for each group, how many undrained events `note_step` has seen
        self._drained: tuple[int | None, list[list[PageEvent]]] = None, []  # step and events of the latest `drain`
        # The latest pages that became findable or were evicted: (seconds since 1970, number of the group, event).
        self.turnover: deque[tuple[float, int, PageCommitted | PageEvicted]] = deque(maxlen=MAX_TURNOVER)
        self._num_turned = 0  # of them, how many came with the latest `drain`
        self.plans: dict[int, GroupPlan] = {}
        self.batch = 1
        self.longest = 0
        self._first_pool = secrets.randbits(48)  # readers that keep page maps must not mistake new pools for old ones

    def check(self) -> None:
        """Verify the invariants of pools, tables and the host tier; raises `PoolCorrupted` with all that is wrong in
        the first of them that is damaged. O(pages)."""
        for group in self.groups:
            group.pool.check(group.tables)
        if self.host is not None:
            self.host.check()

    def layer_bytes(self, layer_index: int, num_rows: int, num_pages: int = 0) -> HeldBytes:
        """Bytes of `num_rows` rows of one layer, and of `num_pages` pages that hold them."""
        pair = self.rows_of[layer_index]
        width = sum(rows.row_bytes for rows in pair)
        return HeldBytes(
            stored=num_rows * width,
            reserved=num_pages * self.page_size * width,
            scales=num_rows * sum(rows.scale_bytes for rows in pair),
            dequantised=num_rows * sum(rows.exact_row_bytes for rows in pair if not rows.coding.is_exact),
        )

    def reserved_bytes(self, layer_index: int) -> int:
        """Bytes of the whole pool of one layer."""
        return sum(rows.reserved_bytes for rows in self.rows_of[layer_index])

    def shared_rows(self, layer: LayerGeometry) -> int:
        """Rows saved by sharing: for every page, the rows of all live tables that refer to it but one, the longest."""
        group = next(group for group in self.groups if layer in group.layers)
        if group.pool.counts().num_shared == 0:
            return 0
        fills: dict[int, int] = {}
        saved = 0
        for table in group.tables:
            if table.seq_id == KEPT:
                continue
            for number in table.held_numbers:
                page_id = table.page_ids[number]
                fill = min(self.page_size, table.num_tokens - number * self.page_size)
                if page_id in fills:
                    saved += min(fill, fills[page_id])
                fills[page_id] = max(fill, fills.get(page_id, 0))
        return saved

    def _buffers(
        self, layer: LayerGeometry, num_pages: int, dtype: torch.dtype, device: torch.device
    ) -> tuple[PageRows, PageRows]:
        """K and V buffers of one layer. Only the null page is initialised, to zero, because padding reads it."""
        made = []
        for coding, dim in zip(self.spec.codec.at(layer.index), (layer.key_dim, layer.value_dim), strict=True):
            rows = PageRows(coding, layer.num_kv_heads, num_pages * self.page_size, dim, dtype, device)
            rows.clear(slice(0, self.page_size))
            made.append(rows)
        return made[0], made[1]

    def _host_tier(self, dtype: torch.dtype, device: torch.device) -> HostIndex | None:
        if self.spec.host_gib is None or self.why_no_sharing:
            return None  # the host tier stores shared prefixes, so where sharing is impossible it would stay empty
        count = num_host_pages(self.spec.host_gib, self.bytes_per_page(dtype))
        free = free_bytes(torch.device("cpu"))
        if device.type == "cpu":
            free = max(0, free - self._pool_bytes)  # the pool will be allocated from the same memory
        check_room(f"A host tier of {self.spec.host_gib:g} GiB", count * self.bytes_per_page(dtype), free)
        return HostIndex(count, self.page_size, self.bytes_per_page(dtype), events=self.groups[0].pool.events)

    def bytes_per_page(self, dtype: torch.dtype) -> int:
        """Bytes of K and V of all layers for one page."""
        return page_bytes(self.spec, self.geometry, str(dtype).removeprefix("torch."))

    @property
    def why_no_sharing(self) -> str:
        """The reason why prefixes cannot be shared on this model; empty where they can."""
        return why_no_sharing(self.spec, self.geometry)

    @property
    def can_batch(self) -> bool:
        """Whether sequences of different lengths can be computed in one forward: every layer with a cache must be
        paged, and there must be no eviction rule, as these observe one sequence at a time."""
        if not self.spec.retention.keeps_all:
            return False
        paged = {layer.index for layer in self._layers}
        return all(layer.index in paged or layer.kind in ("shared", "none") for layer in self.geometry.layers)

    def note_step(self, step: int) -> None:
        """Note which pages became findable with this step, which is done."""
        for number, group in enumerate(self.groups):
            new = group.pool.events[self._num_noted[number] :]
            self._findable += [(step, event) for event in new if isinstance(event, PageCommitted)]
            self._num_noted[number] = len(group.pool.events)
        if len(self._findable) > 4 * (self.num_pages + (self.host.num_pages if self.host else 0)):
            self._findable = [(at, entry) for at, entry in self._findable if self._is_findable(entry)]

    def drain(self, step: int) -> tuple[tuple[PageEvent, ...], tuple[PoolStep, ...]]:
        """The page events since the last call, in order within each group, and the present state of every pool: for the
        record of a step."""
        pools = tuple(self._pool_step(number, group) for number, group in enumerate(self.groups))
        self._drained = step, [[*group.pool.events] for group in self.groups]
        for number, group in enumerate(self.groups):
            group.pool.events.clear()
            self._num_noted[number] = 0
        turned = [
            (time.time(), number, event)
            for number, events in enumerate(self._drained[1])
            for event in events
            if isinstance(event, PageCommitted | PageEvicted)
        ]
        self.turnover += turned
        self._num_turned = len(turned)
        return tuple(event for events in self._drained[1] for event in events), pools

    def undo_drain(self, step: int) -> None:
        """Undo `drain` for a step that failed: its page events will be part of the next step's record."""
        if self._drained[0] == step:
            for group, events in zip(self.groups, self._drained[1], strict=True):
                group.pool.events[:0] = events
            for _ in range(min(self._num_turned, len(self.turnover))):
                self.turnover.pop()
            self._drained = None, []

    def _is_findable(self, entry: PageCommitted) -> bool:
        owner = self.groups[0].pool if entry.tier is Tier.DEVICE else self.host
        return owner is not None and owner.entry(entry.page_id) is entry

    def evict_outside_path(self, path: Container[int]) -> None:
        """Going back has made another step the present one: remove pages from the prefix cache that became findable
        with steps not on its `path`, unless its own tables hold them, because no sequence could have found them
        there."""
        held = {page_hash for t in self.groups[0].tables if t.seq_id != KEPT for page_hash in t.page_hashes}
        kept, beside = [], []
        for at, entry in self._findable:
            if at in path or entry.page_hash in held:
                kept.append((at, entry))
            elif self._is_findable(entry):
                beside.append(entry)
        self._findable = kept
        self._evict(beside)

    @contextmanager
    def found_as_before(self) -> Iterator[None]:
        """What becomes findable within the block is evicted at its end: of a state beside the live one no page may be
        found, since no sequence could have found it there."""
        events = self.groups[0].pool.events
        first = len(events)
        try:
            yield
        finally:
            made = (event for event in events[first:] if isinstance(event, PageCommitted))
            self._evict(entry for entry in made if self._is_findable(entry))

    def _evict(self, entries: Iterable[PageCommitted]) -> None:
        """Remove these findable pages from the prefix cache, on the device or on the host."""
        for entry in entries:
            owner = self.groups[0].pool if entry.tier is Tier.DEVICE else self.host
            if owner is not None:
                owner.evict([entry.page_id])

    @property
    def kept_bytes(self) -> int:
        """Bytes of the pages that only kept checkpoints refer to."""
        found = 0
        for group in self.groups:
            live = {page_id for table in group.tables if table.seq_id != KEPT for page_id in table.held_pages}
            kept = {page_id for table in group.tables if table.seq_id == KEPT for page_id in table.held_pages}
            width = sum(rows.row_bytes for layer in group.layers for rows in self.rows_of[layer.index])
            found += len(kept - live) * self.page_size * width
        return found

    def restart_steps(self) -> None:
        """Restart the numbering of steps: pages findable now count as findable before the first step."""
        self._findable.clear()
        self._drained = None, []

    def _pool_step(self, number: int, group: PageGroup) -> PoolStep:
        last_pages = [(table.page_ids[-1], table.num_slack_tokens) for table in group.tables if table.page_ids]
        counts = group.pool.counts()
        return PoolStep(
            pool=self._first_pool + number,
            page_size=self.page_size,
            num_pages=self.num_pages,
            window=group.window,
            num_events=len(group.pool.events),
            fills=tuple((page_id, self.page_size - slack) for page_id, slack in last_pages if page_id),
            num_free=counts.num_free,
            num_used=counts.num_used,
            num_shared=counts.num_shared,
            num_cached=counts.num_cached,
            num_slack_tokens=sum(table.num_slack_tokens for table in group.tables),
            host_used=self.host.num_stored_pages if self.host else 0,
            host_pages=self.host.num_pages if self.host else 0,
        )

    # ---- rows ----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def copy_page(self, group: PageGroup, copied: PageCopied) -> None:
        """Do the copy of a copy-on-write: copy the rows of the shared partial page to the new page and clear its other
        rows."""
        size, count = self.page_size, copied.num_tokens
        src, dst = copied.src_page_id * size, copied.dst_page_id * size
        for layer in group.layers:
            for rows in self.rows_of[layer.index]:
                rows.copy_from(rows, src, dst, count)
                rows.clear(slice(dst + count, dst + size))

    @torch.inference_mode()
    def write_through(self, committed: Listing[PageCommitted]) -> None:
        """Copy pages that became findable to the host tier, once each."""
        if self.host is None:
            return
        for entry in committed:
            store = self.host.begin_store(entry)
            if store is None:
                continue
            began = time.perf_counter()
            try:
                self._move(self.rows_of, entry.page_id, self.host_rows, store.host_page_id)
            except BaseException:
                self.host.abandon_store(store)
                raise
            self.host.finish_store(store, (time.perf_counter() - began) * 1e3)

    @torch.inference_mode()
    def load_from_host(self, entries: Listing[PageCommitted], page_ids: Listing[int]) -> None:
        """Copy host pages into device pages."""
        assert self.host is not None
        self.host.begin_load(entries)
        began = time.perf_counter()
        try:
            for entry, page_id in zip(entries, page_ids, strict=True):
                self._move(self.host_rows, entry.page_id, self.rows_of, page_id)
        except BaseException:
            self.host.abandon_load(entries)
            raise
        self.host.finish_load(entries, page_ids, (time.perf_counter() - began) * 1e3)

    def _move(self, source: Any, source_page: int, target: Any, target_page: int) -> None:
        size = self.page_size
        for layer in self._layers:
            for src, dst in zip(source[layer.index], target[layer.index], strict=True):
                dst.copy_from(src, source_page * size, target_page * size, size)

    def rows(self, table: PageTable, layer_index: int, first: int | None = None) -> HeldRows:
        """The rows of a sequence in one layer, from position `first` on if given: a view where they are exact and
        consecutive, else a gathered copy."""
        keys, values = self.rows_of[layer_index]
        start = table.first_held_position if first is None else first
        slots = held_pages(table, start, table.num_tokens, keys.device)
        positions = None
        if table.num_evicted_pages and first is None:
            positions = held_positions(table, keys.device).expand(keys.num_heads, -1)
        return HeldRows(keys.read(slots)[None], values.read(slots)[None], start, positions)

    def newest(
        self, table: PageTable, part: Part, first: int, layers: Listing[int], stop: int | None = None
    ) -> list[torch.Tensor]:
        """K or V `[H_kv, T, D]` at positions `first … stop - 1` (None: to the newest) of each of some layers of one
        group."""
        stored = [self.rows_of[index][0 if part == "keys" else 1] for index in layers]
        slots = held_pages(table, first, table.num_tokens if stop is None else stop, stored[0].device)
        return [rows.read(slots) for rows in stored]

    def plan_of(self, layer_index: int) -> GroupPlan:
        """The plan of the present forward for a layer."""
        return self.plans[next(n for n, group in enumerate(self.groups) if layer_index in group.layer_indices)]

    # ---- one forward ---------------------------------------------------------------------------------------------

    def plan(self, tables_of: Listing[Listing[PageTable]], num_new: int) -> None:
        """Plan the next forward: which slots it writes and reads when each sequence computes `num_new` tokens.
        `tables_of` has the tables of each sequence, which already have room for these."""
        self.batch = len(tables_of)
        self.longest = max(tables[0].num_tokens for tables in tables_of) - num_new
        for number, group in enumerate(self.groups):
            device = self.rows_of[group.layers[0].index][0].device
            tables = [mine[number] for mine in tables_of]
            plan = self.plans[number] = GroupPlan(tables, num_new, self.longest, device, group.window)
            if (slack := plan.slack()) is not None:
                for rows in (rows for layer in group.layers for rows in self.rows_of[layer.index]):
                    rows.clear(slack)


def pageable(geometry: CacheGeometry) -> tuple[LayerGeometry, ...]:
    """The layers that keep K and V and nothing else."""
    return tuple(filter(is_pageable, geometry.layers))
