"""The paged layout: one pool of pages per group of layers, page tables per sequence, sharing, copy-on-write, windows.

The rows of a layer are `[H_kv, pages * page_size, D]`: a page is a run of `page_size` slots, and slot
`page_id * page_size + offset` holds one row, exact or coded. Heads come first so that a table which is one run of
pages is read without a copy. Writing scatters new rows to slots; reading gathers slots, right-aligned when a batch is
ragged, with the null page (always zero) as padding.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Listing
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin

from engine.cache.attention_probe import Probe
from engine.cache.layers.adapter import HeldRows, PageCounts, SequenceCache, is_pageable, state_of_other_layers
from engine.cache.memory import check_room, free_bytes
from engine.cache.paged.host import HostIndex, num_host_pages
from engine.cache.paged.pool import DuplicatePolicy, PagePool, PoolExhausted
from engine.cache.paged.retention import PageKeeper
from engine.cache.paged.rows import PageRows
from engine.cache.paged.table import PageTable
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.predict.bytes import is_pageable as is_pageable_layer
from engine.predict.bytes import page_bytes, why_no_sharing, window_of
from engine.predict.capacity import pool_pages
from engine.spec.cache import CacheSpec
from engine.wire.evictions import Eviction
from engine.wire.page_events import PageCommitted, PageCopied, PageEvent, Tier
from engine.wire.page_map import PageMap, PageTracker
from engine.wire.prefix_match import Converted, Forked, PrefixMatch, WhyNotReused


@dataclass(eq=False)
class PageGroup:
    """Layers whose pages live and die together: one pool, one table per sequence. `window` is None for full layers."""

    pool: PagePool
    layers: tuple[LayerGeometry, ...]
    window: int | None
    tables: list[PageTable]
    tracker: PageTracker


@dataclass(eq=False)
class GroupPlan:
    """Where one forward writes and reads in one group. `reads` is a slice where all rows lie in one run."""

    writes: torch.Tensor
    reads: slice | torch.Tensor
    held: int
    first: int


class PageStore:
    """All pages of a session: pools, buffers, the host tier. One owner, the session."""

    def __init__(
        self, spec: CacheSpec, geometry: CacheGeometry, max_length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Refuses impossible sizes with an `InputError` before anything is allocated."""
        spec.codec.check(geometry)
        self.spec = spec
        self.geometry = geometry
        self.page_size = spec.page_size
        self.num_pages = pool_pages(spec, max_length)
        self._pool_bytes = self.num_pages * self.bytes_per_page(dtype)
        check_room(f"A pool of {self.num_pages:,} pages", self._pool_bytes, free_bytes(device))
        policy = DuplicatePolicy.REPLACE if spec.replace_duplicates else DuplicatePolicy.KEEP_BOTH
        windows = sorted({layer.window for layer in geometry.attention_layers if layer.kind == "sliding"}, key=str)
        self.groups: list[PageGroup] = []
        for window in (None, *windows):
            layers = tuple(la for la in pageable(geometry) if window_of(la) == window)
            if layers:
                pool = PagePool(self.num_pages, self.page_size, duplicates=policy)
                tracker = PageTracker(self.num_pages, self.page_size)
                self.groups.append(PageGroup(pool, layers, window, [], tracker))
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
        self._findable: list[tuple[int, PageCommitted]] = []  # which page became findable with which step
        self.plans: dict[int, GroupPlan] = {}
        self.batch = 1
        self.longest = 0

    @property
    def _layers(self) -> tuple[LayerGeometry, ...]:
        return pageable(self.geometry)

    def shared_rows(self, layer: LayerGeometry) -> int:
        """Rows that more than one table refers to, counted once less than their sharers: what sharing saves."""
        group = next(group for group in self.groups if layer in group.layers)
        if group.pool.counts().num_shared == 0:
            return 0
        fills: dict[int, int] = {}
        saved = 0
        for table in group.tables:
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
        """K and V room of one layer, untouched but for the null page, which must be zero: padding reads it."""
        made = []
        for coding, dim in zip(self.spec.codec.at(layer.index), (layer.key_dim, layer.value_dim), strict=True):
            rows = PageRows(coding, layer.num_kv_heads, num_pages * self.page_size, dim, dtype, device)
            rows.clear(slice(0, self.page_size))
            made.append(rows)
        return made[0], made[1]

    def _host_tier(self, dtype: torch.dtype, device: torch.device) -> HostIndex | None:
        if self.spec.host_gib is None or self.why_no_sharing:
            return None  # a host tier keeps shared prefixes; where there can be none it would stay empty
        count = num_host_pages(self.spec.host_gib, self.bytes_per_page(dtype))
        free = free_bytes(torch.device("cpu"))
        if device.type == "cpu":
            free = max(0, free - self._pool_bytes)  # which is still to be taken from the same memory
        check_room(f"A host tier of {self.spec.host_gib:g} GiB", count * self.bytes_per_page(dtype), free)
        return HostIndex(count, self.page_size, self.bytes_per_page(dtype), events=self.groups[0].pool.events)

    def bytes_per_page(self, dtype: torch.dtype) -> int:
        """K and V of all layers for one page."""
        return page_bytes(self.spec, self.geometry, str(dtype).removeprefix("torch."))

    def row_bytes(self, layer_index: int) -> int:
        """K and V of one row of one layer, all heads, as stored."""
        return sum(rows.row_bytes for rows in self.rows_of[layer_index])

    @property
    def why_no_sharing(self) -> str:
        """The reason why prefixes cannot be shared on this model; empty where they can."""
        return why_no_sharing(self.spec, self.geometry)

    @property
    def can_batch(self) -> bool:
        """Whether sequences of different lengths can go through one forward: every layer with a cache must be paged,
        and a rule that drops pages watches one sequence at a time."""
        if not self.spec.retention.keeps_all:
            return False
        paged = {layer.index for layer in self._layers}
        return all(layer.index in paged or layer.kind in ("shared", "none") for layer in self.geometry.layers)

    def drain(self, step: int) -> tuple[tuple[PageEvent, ...], tuple[PageMap, ...]]:
        """What happened to pages since the last call, in order within each group, and every pool as it stands now."""
        events: list[PageEvent] = []
        for group in self.groups:
            group.tracker.apply(group.pool.events, step)
            events += group.pool.events
            group.pool.events.clear()
        self._findable += [(step, event) for event in events if isinstance(event, PageCommitted)]
        if len(self._findable) > 4 * (self.num_pages + (self.host.num_pages if self.host else 0)):
            self._findable = [(at, entry) for at, entry in self._findable if self._is_findable(entry)]
        return tuple(events), tuple(self._map(group) for group in self.groups)

    def _is_findable(self, entry: PageCommitted) -> bool:
        owner = self.groups[0].pool if entry.tier is Tier.DEVICE else self.host
        return owner is not None and owner.entry(entry.page_id) is entry

    def forget_after(self, step: int) -> None:
        """Going back to a step: what became findable after it is no prefix that anybody could have been served."""
        held = {page_hash for table in self.groups[0].tables for page_hash in table.page_hashes}
        undone = [e for at, e in self._findable if at > step and e.page_hash not in held and self._is_findable(e)]
        self._findable = [(at, e) for at, e in self._findable if at <= step or e.page_hash in held]
        for entry in undone:
            owner = self.groups[0].pool if entry.tier is Tier.DEVICE else self.host
            if owner is not None:
                owner.evict([entry.page_id])

    def forget_steps(self) -> None:
        """Steps count anew: what is findable now was so before the first."""
        self._findable.clear()

    def _map(self, group: PageGroup) -> PageMap:
        for table in group.tables:
            if table.page_ids and table.page_ids[-1]:
                group.tracker.set_fill(table.page_ids[-1], self.page_size - table.num_slack_tokens)
        counts = group.pool.counts()
        return PageMap(
            page_size=self.page_size,
            num_pages=self.num_pages,
            window=group.window,
            blocks=group.tracker.blocks(),
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
        """Copy-on-write: the rows of a shared partial page go to the page that will be written."""
        size, count = self.page_size, copied.num_tokens
        src, dst = copied.src_page_id * size, copied.dst_page_id * size
        for layer in group.layers:
            for rows in self.rows_of[layer.index]:
                rows.copy_from(rows, src, dst, count)

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
    def read_back(self, entries: Listing[PageCommitted], page_ids: Listing[int]) -> None:
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
        """What a sequence holds in one layer (from a held position on): a view where exact rows lie in one run, else a
        gathered copy."""
        keys, values = self.rows_of[layer_index]
        start = table.first_held_position if first is None else first
        slots = held_slots(table, start, table.num_tokens, keys.device)
        positions = None
        if table.num_dropped_pages and first is None:
            positions = held_positions(table, keys.device).expand(keys.num_heads, -1)
        return HeldRows(keys.read(slots)[None], values.read(slots)[None], start, positions)

    # ---- one forward ---------------------------------------------------------------------------------------------

    def plan(self, caches: Listing[PagedCache], num_new: int) -> None:
        """Say where the next forward of these sequences, `num_new` tokens each, writes and what it reads."""
        self.batch = len(caches)
        self.longest = max(cache.planned_tokens for cache in caches) - num_new
        for number, group in enumerate(self.groups):
            tables = [cache.tables[number] for cache in caches]
            device = self.rows_of[group.layers[0].index][0].device
            writes = [held_slots(t, t.num_tokens - num_new, t.num_tokens, device, as_tensor=True) for t in tables]
            width = max(table.num_held_tokens for table in tables)
            first = self.longest + num_new - width  # in columns of the right-aligned batch
            reads: slice | torch.Tensor
            if len(tables) == 1:
                reads = held_slots(tables[0], tables[0].first_held_position, tables[0].num_tokens, device)
            else:
                index = torch.zeros(len(tables), width, dtype=torch.long, device=device)
                for row, table in enumerate(tables):
                    slots = held_slots(table, table.first_held_position, table.num_tokens, device, as_tensor=True)
                    index[row, width - len(slots) :] = slots
                reads = index.flatten()
            self.plans[number] = GroupPlan(torch.cat(writes), reads, width - num_new, first)


class PagedLayer(CacheLayerMixin):  # type: ignore[misc]
    """transformers' view of one paged layer: it writes and reads where the store's plan says."""

    def __init__(self, store: PageStore, layer_index: int, group: int) -> None:
        super().__init__()
        self.store, self.layer_index, self.group = store, layer_index, group
        # transformers sizes the masks of full and of sliding layers by the first layer of each that says what it is
        self.is_sliding = store.groups[group].window is not None
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """The pool was made with the session."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scatter rows `[B, H_kv, T, D]`; returns all rows, `[B, H_kv, S + T, D]`, right-aligned."""
        plan = self.store.plans[self.group]
        pair = self.store.rows_of[self.layer_index]
        read = []
        for stored, new in zip(pair, (key_states, value_states), strict=True):
            stored.write(plan.writes, new.transpose(0, 1).flatten(1, 2))
            rows = stored.read(plan.reads)
            heads, slots, dim = rows.shape
            read.append(rows.view(heads, self.store.batch, slots // self.store.batch, dim).transpose(0, 1))
        return read[0], read[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        plan = self.store.plans[self.group]
        return plan.held + query_length, plan.first

    def get_seq_length(self) -> int:
        return self.store.longest

    def get_max_length(self) -> int:
        return -1  # transformers' word for "no maximum": the pool says when it is full


class PagedCache(SequenceCache):
    """One sequence's tables in a shared store, with layers that cannot be paged kept as transformers made them."""

    def __init__(self, store: PageStore, config: Any, max_length: int, seq_id: int) -> None:
        self.store = store
        self.tables = [group.pool.open_table(seq_id) for group in store.groups]
        for group, table in zip(store.groups, self.tables, strict=True):
            group.tables.append(table)
        self.hit_tokens = 0
        self.why_not_reused: WhyNotReused | None = None
        self.keeper = self._new_keeper(seq_id)
        super().__init__(store.spec, config, max_length)

    def _build(self) -> Any:
        cache = super()._build()
        for number, group in enumerate(self.store.groups):
            for layer in group.layers:
                if is_pageable(cache.layers[layer.index]):
                    cache.layers[layer.index] = PagedLayer(self.store, layer.index, number)
        return cache

    def _new_keeper(self, seq_id: int) -> PageKeeper | None:
        """The rule for the full layers' pages, where there is one: theirs is the first group."""
        group = self.store.groups[0]
        if self.store.spec.retention.keeps_all or group.window is not None:
            return None
        return PageKeeper(self.store.spec.retention, group.layers, self.store.page_size, seq_id)

    # ---- a rule that drops pages -----------------------------------------------------------------------------------

    def probe(self, observe: bool) -> Probe | None:
        wanted = self.keeper.rule.probe() if self.keeper else None
        return wanted or super().probe(observe)

    @torch.inference_mode()
    def condense(self, num_tokens: int, num_prompt_tokens: int, probe: Probe | None) -> tuple[Eviction, ...]:
        """From the end of the prompt on, drop the pages over budget: from this sequence, in all full layers at once."""
        if self.keeper is None:
            return ()
        group, table = self.store.groups[0], self.tables[0]
        device = self.store.rows_of[group.layers[0].index][0].device
        is_over = num_tokens >= num_prompt_tokens

        def keys_of(layer: int) -> torch.Tensor:
            return self.store.rows(table, layer).keys[0]

        cut, memory = self.keeper.plan(table, is_over, probe, keys_of, held_positions(table, device))
        self.keeper.note(table, cut, memory, self.store.rows_of, is_over)
        if cut is None:
            return ()
        group.pool.drop(table, cut.numbers)
        return self.keeper.evictions(cut)

    def positions(self, layer_index: int) -> torch.Tensor | None:
        group, table = self.store.groups[0], self.tables[0]
        if not table.num_dropped_pages or layer_index not in {layer.index for layer in group.layers}:
            return None
        keys = self.store.rows_of[layer_index][0]
        return held_positions(table, keys.device).expand(keys.num_heads, -1)

    def knows(self, num_tokens: int) -> bool:
        """Rows of pages are written once: those of then are a prefix of those of now, unless pages went in between."""
        if num_tokens >= self.num_tokens:
            return True
        has_windows = self._holds_window_at(num_tokens)
        if self.keeper is None:
            return has_windows and super().knows(num_tokens)
        return has_windows and self.keeper.kept_all_since(num_tokens)

    def page_ids_at(self, num_tokens: int) -> list[list[int]]:
        """Pages in logical order when the sequence had so many tokens, one list a table; 0: left a window, or dropped
        so long ago that it is not known any more."""
        count = -(-num_tokens // self.store.page_size)
        tables = [table.page_ids[:count] for table in self.tables]
        for number, entry in (self.keeper.dropped_since(num_tokens) if self.keeper else {}).items():
            tables[0][number] = entry.page_ids[entry.numbers.index(number)]
        return tables

    @property
    def journal_bytes(self) -> int:
        return self.keeper.journal_bytes if self.keeper else 0

    @property
    def prompt_ended_at(self) -> int | None:
        return self.keeper.prompt_ended_at if self.keeper else None

    # ---- room ------------------------------------------------------------------------------------------------------

    @property
    def planned_tokens(self) -> int:
        """Tokens with room, those of the forward in progress included."""
        return self.tables[0].num_tokens

    def admit(self, token_ids: list[int], spare_pages: int) -> int:
        """Take over the pages of a known prefix, from the device and then from the host; returns the tokens served.

        Raises `PoolExhausted`, having changed nothing, when the rest of the prompt would not fit beside it and leave
        `spare_pages` for the sequences that run: a newcomer let in too early is thrown out again at once.
        """
        if self.store.why_no_sharing:
            for group in self.store.groups:
                needed = -(-len(token_ids) // self.store.page_size) + spare_pages
                if group.window is None and needed > group.pool.num_available_pages:
                    raise PoolExhausted(needed, group.pool.num_available_pages)
            return 0
        pool, table = self.store.groups[0].pool, self.tables[0]
        match = pool.match_prefix(token_ids)
        self.why_not_reused = pool.explain(match)
        pool.adopt(table, match, len(token_ids) - match.num_hit_tokens + spare_pages * self.store.page_size)
        self._load_from_host(pool, table, match, token_ids)
        self.num_tokens = self.hit_tokens = table.num_tokens
        return self.hit_tokens

    def _load_from_host(self, pool: PagePool, table: PageTable, match: PrefixMatch, token_ids: Listing[int]) -> None:
        host = self.store.host
        entries = host.match_after(match, pool.num_available_pages) if host else ()
        if not entries:
            return
        pool.append(table, len(entries) * self.store.page_size)
        try:
            self.store.read_back(entries, table.page_ids[len(match.page_ids) :])
        except BaseException:
            pool.truncate(table, match.num_hit_tokens)
            raise
        pool.commit(table, token_ids)

    def begin(self, num_new: int) -> None:
        """Take the pages for `num_new` rows in every group, or raise `PoolExhausted` and take none."""
        done = 0
        try:
            for group, table in zip(self.store.groups, self.tables, strict=True):
                copied = group.pool.append(table, num_new)
                done += 1
                if copied is not None:
                    self.store.copy_page(group, copied)
        except BaseException:
            for group, table in list(zip(self.store.groups, self.tables, strict=True))[:done]:
                group.pool.truncate(table, table.num_tokens - num_new)
            raise

    def commit(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        for group, table in zip(self.store.groups, self.tables, strict=True):
            if group.window is not None:
                group.pool.slide(table, max(0, num_tokens - group.window + 1))

    @torch.inference_mode()
    def fork_from(self, other: SequenceCache, num_tokens: int) -> bool:
        """Share every page of the other sequence; who writes to a shared page first gets a copy of it."""
        if not isinstance(other, PagedCache):
            return False
        self.why_not_reused = Forked(other.tables[0].seq_id)
        if state_of_other_layers(other.live):
            return False
        for number, group in enumerate(self.store.groups):
            group.tables.remove(self.tables[number])
            self.tables[number] = group.pool.fork(other.tables[number], self.tables[number].seq_id)
            group.tables.append(self.tables[number])
        if other.keeper is not None:
            self.keeper = other.keeper.fork(self.tables[0].seq_id)
        self.num_tokens = other.num_tokens
        if num_tokens != other.num_tokens and not self._crop_fork(num_tokens):
            return False
        if self.keeper is not None:
            self.keeper.forget_journal(num_tokens)
        return True

    def page_counts(self) -> PageCounts:
        held = shared = 0
        for group, table in zip(self.store.groups, self.tables, strict=True):
            mine = table.held_pages
            held += len(mine)
            if group.pool.counts().num_shared:
                shared += sum(group.pool.ref_count(page_id) > 1 for page_id in mine)
        return PageCounts(held, shared, self.hit_tokens, self.store.why_no_sharing or self.why_not_reused)

    def publish(self, token_ids: list[int]) -> None:
        """Make full pages findable by what they hold, and write them through to the host.

        Rows that were computed after others had been dropped are not what their tokens stand for elsewhere.
        """
        ended_at = self.keeper.prompt_ended_at if self.keeper else None
        if not self.store.why_no_sharing and (ended_at is None or self.num_tokens <= ended_at):
            self.store.write_through(self.store.groups[0].pool.commit(self.tables[0], token_ids))

    @torch.inference_mode()
    def crop(self, num_tokens: int) -> bool:
        if num_tokens > self.planned_tokens or not self._holds_window_at(num_tokens):
            return False
        if state_of_other_layers(self.live) and not num_tokens == self.num_tokens == self.planned_tokens:
            return False  # a forward that has begun may have moved some of the states on
        if self.keeper is not None and not self._take_pages_back(self.keeper, num_tokens):
            return False
        for group, table in zip(self.store.groups, self.tables, strict=True):
            group.pool.truncate(table, num_tokens)
        self.num_tokens = num_tokens
        return True

    def _take_pages_back(self, keeper: PageKeeper, num_tokens: int) -> bool:
        """Pages and memory as they were with `num_tokens` tokens; False, and nothing done, where that is not known any
        more or the pool has no room for it."""
        pool, table = self.store.groups[0].pool, self.tables[0]
        if not keeper.can_go_back(num_tokens, self.planned_tokens):
            return False
        # a step that failed may have noted pages that are still there
        gone = {n: entry for n, entry in keeper.dropped_since(num_tokens).items() if not table.page_ids[n]}
        behind = table.page_ids[-(-num_tokens // self.store.page_size) :]
        room = pool.num_available_pages + sum(pool.ref_count(page_id) == 1 for page_id in behind if page_id)
        if len(gone) > room:
            return False
        pool.truncate(table, num_tokens)
        pool.take_back(table, sorted(gone))
        keeper.go_back(table, num_tokens, gone, self.store.rows_of)
        self.put_back = len(gone) * self.store.page_size
        return True

    def _holds_window_at(self, num_tokens: int) -> bool:
        """Whether every sliding group still has the rows that a query at `num_tokens` reads."""
        return all(
            table.first_held_position <= max(0, num_tokens - (group.window or num_tokens) + 1)
            for group, table in zip(self.store.groups, self.tables, strict=True)
            if group.window is not None
        )

    def close(self) -> None:
        """Give every page back; the cache is not used again."""
        for group, table in zip(self.store.groups, self.tables, strict=True):
            group.pool.release(table)
            group.tables.remove(table)

    @property
    def keeps_all_rows(self) -> bool:
        return not self.store.spec.is_compact and self._maps_row_for_row

    @property
    def _maps_row_for_row(self) -> bool:
        """Whether every layer is paged and holds every row, so that the rows of another layout can be copied in."""
        return len(self.store.groups) == 1 and not self.store.why_no_sharing

    @property
    def is_lossy(self) -> bool:
        return not self.store.spec.codec.is_exact

    def clear(self) -> None:
        for group, table in zip(self.store.groups, self.tables, strict=True):
            group.pool.release(table)
        self.live = self._build()
        self.keeper = self._new_keeper(self.tables[0].seq_id)
        self.num_tokens = 0

    def rows(self, layer_index: int) -> HeldRows | None:
        for group, table in zip(self.store.groups, self.tables, strict=True):
            if any(layer.index == layer_index for layer in group.layers):
                return self.store.rows(table, layer_index) if table.num_held_tokens else None
        return super().rows(layer_index)

    @torch.inference_mode()
    def newest_rows(self, layer_index: int, first_position: int) -> HeldRows | None:
        """The rows from a position on alone: whatever else is held stays coded."""
        for group, table in zip(self.store.groups, self.tables, strict=True):
            if any(layer.index == layer_index for layer in group.layers):
                first = max(first_position, table.first_held_position)
                return self.store.rows(table, layer_index, first) if first < table.num_tokens else None
        return super().newest_rows(layer_index, first_position)

    def layer_bytes(self, layer_index: int) -> tuple[int, int]:
        """Bytes of the rows held and of the pages that hold them; shared pages count for each sharer."""
        for group, table in zip(self.store.groups, self.tables, strict=True):
            for layer in group.layers:
                if layer.index == layer_index:
                    width = self.store.row_bytes(layer_index)
                    pages = len(table.page_ids) - table.num_slid_pages - table.num_dropped_pages
                    return table.num_held_tokens * width, pages * self.store.page_size * width
        return super().layer_bytes(layer_index)

    @torch.inference_mode()
    def take_over(self, other: SequenceCache) -> bool:
        """Copy the rows of another layout into pages; False if they cannot be carried over exactly."""
        self.why_not_reused = Converted() if other.num_tokens else None
        if other.spec.recomputes or not self._maps_row_for_row:
            return False
        if not other.keeps_all_rows:
            return False
        self.begin(other.num_tokens)
        self.store.plan([self], other.num_tokens)
        for index in range(other.num_layers):
            rows = other.rows(index)
            if rows is not None and rows.keys.shape[2]:
                self.live.update(rows.keys, rows.values, index)
        self.commit(other.num_tokens)
        return True


def held_slots(table: PageTable, first: int, stop: int, device: torch.device, as_tensor: bool = False) -> Any:
    """Slots of positions `first … stop - 1`: a slice where they are one run (read without a copy), else a tensor."""
    size = table.page_size
    pages = table.page_ids[first // size : -(-stop // size)]
    offset = first % size
    if table.num_dropped_pages:
        pages = [page_id for page_id in pages if page_id]
        stop = first + len(pages) * size - offset + (stop - -(-stop // size) * size)
    if not as_tensor and (not pages or pages == list(range(pages[0], pages[0] + len(pages)))):
        begin = pages[0] * size + offset if pages else 0
        return slice(begin, begin + stop - first)
    slots = torch.tensor(pages, device=device)[:, None] * size + torch.arange(size, device=device)
    return slots.flatten()[offset : offset + stop - first]


def held_positions(table: PageTable, device: torch.device) -> torch.Tensor:
    """Positions `[S]` of the rows that a sequence holds, ascending."""
    numbers = torch.tensor(table.held_numbers, device=device)
    positions = (numbers[:, None] * table.page_size + torch.arange(table.page_size, device=device)).flatten()
    return positions[: table.num_held_tokens]


def pageable(geometry: CacheGeometry) -> tuple[LayerGeometry, ...]:
    """The layers that keep K and V and nothing else."""
    return tuple(filter(is_pageable_layer, geometry.layers))
