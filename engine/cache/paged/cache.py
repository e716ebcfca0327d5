"""The cache of one sequence in pages: page tables in a shared store, shared prefixes, copy-on-write, sliding windows
and eviction of whole pages; and its layers, as transformers' forward calls them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Listing
from dataclasses import replace
from typing import Any

import torch

from engine.cache.attention_probe import Probe
from engine.cache.by_hand import RowMarks, RowWrite
from engine.cache.contract import (
    Evicted,
    HeldBytes,
    HeldRows,
    PageCounts,
    Pair,
    RowDelta,
    StoredCache,
    StoredLayer,
    StoredTable,
)
from engine.cache.layers.handles import is_pageable
from engine.cache.layers.layer import OwnLayer
from engine.cache.paged.pool import PagePool, PoolExhausted
from engine.cache.paged.prefix import PrefixMatch
from engine.cache.paged.retention import PageCut, PageKeeper
from engine.cache.paged.rows import GatherBuffer, GroupPlan, HeldPages, Reads, held_positions, held_slots
from engine.cache.paged.store import PageStore
from engine.cache.paged.table import PageTable
from engine.cache.sequence_cache import SequenceCache
from engine.cache.stacking import stacked_view
from engine.errors import InputError
from engine.predict.capacity import cache_capacity, tokens_at_once
from engine.spec.codec import PARTS, Part
from engine.wire.pages import Converted, Forked, WhyNotReused


class PagedCache(SequenceCache):
    """The cache of one sequence in pages of a shared store; `keeper` evicts pages, None where the spec evicts nothing.
    Layers that cannot be paged stay as transformers made them."""

    def __init__(self, store: PageStore, config: Any, max_length: int, seq_id: int, num_source: int = 0) -> None:
        self.store, self.num_source = store, num_source
        self.tables = [group.pool.open_table(seq_id) for group in store.groups]
        self.hit_tokens = 0
        self.why_not_reused: WhyNotReused | None = None
        self.keeper = self._new_keeper(seq_id)
        self.rule = self.keeper.rule if self.keeper else None
        self._uncounted_in: list[int] = []  # for each table, the page that has the uncounted row
        super().__init__(store.spec, config, max_length, num_source)
        self.capacity = cache_capacity(store.spec, max_length, store.geometry)
        self.max_forward_tokens = tokens_at_once(store.spec, max_length, store.geometry)
        # last, so that a cache whose constructor failed is in no group
        for group, table in zip(store.groups, self.tables, strict=True):
            group.tables.append(table)

    def _build_own(self) -> Any:
        cache = super()._build_own()
        self._paged_layers: list[list[int]] = []  # for each group, the indices of its paged layers
        for number, group in enumerate(self.store.groups):
            paged = [layer.index for layer in group.layers if is_pageable(cache.layers[layer.index])]
            self._paged_layers.append(paged)
            for index in paged:
                cache.layers[index] = PagedLayer(self.store, index, number, self.tables)
        return cache

    @torch.inference_mode()
    def all_newest_rows(self, first_position: int) -> dict[int, Pair]:
        """As of every layout; the layers of a group have the same slots, which are computed once."""
        found: dict[int, Pair] = {}
        for paged, table in zip(self._paged_layers, self.tables, strict=True):
            first = max(self.num_decoded(first_position), table.first_held_position)
            if paged and first < table.num_tokens:
                keys, values = (self.store.newest(table, part, first, paged) for part in PARTS)
                found |= dict(zip(paged, zip(keys, values, strict=True), strict=True))
        for index in set(range(len(self.layers))).difference(*self._paged_layers):
            if (rows := self.layers[index].rows_at(None, first_position)) is not None:
                found[index] = rows.keys[0], rows.values[0]
        return dict(sorted(found.items()))

    @torch.inference_mode()
    def together(self, part: Part, span: range, layers: Listing[int], num_tokens: int | None = None) -> torch.Tensor:
        for paged, table in zip(self._paged_layers, self.tables, strict=True):
            if set(paged).issuperset(layers):
                return stacked_view(self.store.newest(table, part, span.start, layers, span.stop))
        return super().together(part, span, layers, num_tokens)

    def _new_keeper(self, seq_id: int) -> PageKeeper | None:
        """The eviction rule for the pages of full-attention layers, which are the first group; None where there is
        none."""
        group = self.store.groups[0]
        if self.store.spec.retention.keeps_all or group.window is not None:
            return None
        return PageKeeper(self.store.spec.retention, group.layers, self.store.page_size, seq_id)

    # ---- room ------------------------------------------------------------------------------------------------------

    def admit(self, token_ids: Listing[int], spare_pages: int, at_most: int | None = None) -> int:
        """Reuse the pages of the longest known prefix of the prompt, on the device and then in the host tier. Returns
        the number of tokens reused, at most `at_most`.

        Raises `PoolExhausted`, having changed nothing, when the rest of the prompt would not fit and leave
        `spare_pages` for the running sequences: a sequence admitted too early would be preempted at once.
        """
        if self.store.why_no_sharing:
            for group in self.store.groups:
                needed = -(-self.num_decoded(len(token_ids)) // self.store.page_size) + spare_pages
                if group.window is None and needed > group.pool.num_available_pages:
                    raise PoolExhausted(needed, group.pool.num_available_pages)
            return 0
        pool, table = self.store.groups[0].pool, self.tables[0]
        match = pool.match_prefix(token_ids)
        self.why_not_reused = pool.explain(match)  # of the whole match: a page that is left out on request is equal
        if at_most is not None:
            match = match.cut(at_most // self.store.page_size)
        pool.adopt(table, match, len(token_ids) - match.num_hit_tokens + spare_pages * self.store.page_size)
        self._reuse_host_pages(pool, table, match, token_ids, at_most)
        self.num_tokens = self.hit_tokens = table.num_tokens
        return self.hit_tokens

    def _reuse_host_pages(
        self, pool: PagePool, table: PageTable, match: PrefixMatch, token_ids: Listing[int], at_most: int | None
    ) -> None:
        host, room = self.store.host, pool.num_available_pages
        if at_most is not None:
            room = min(room, at_most // self.store.page_size - len(match.page_ids))
        entries = host.match_after(match, room) if host and room > 0 else ()
        if not entries:
            return
        pool.append(table, len(entries) * self.store.page_size)
        try:
            self.store.load_from_host(entries, table.page_ids[len(match.page_ids) :])
        except BaseException:
            pool.truncate(table, match.num_hit_tokens)
            raise
        pool.commit(table, token_ids)

    def begin(self, num_new: int) -> None:
        """Take pages for `num_new` tokens in every group, or raise `PoolExhausted` and take none."""
        if self._needs_backup:
            self._backup = self.num_tokens, self._copied_unpaged(self.model_cache)
        num_new, done = self._num_new_rows(num_new), 0
        try:
            for group, table in zip(self.store.groups, self.tables, strict=True):
                copied = group.pool.append(table, num_new)
                done += 1
                if copied is not None:  # copy the shared page's rows; if that fails, share that page again
                    try:
                        self.store.copy_page(group, copied)
                    except BaseException:
                        group.pool.undo_copy(table, copied)
                        raise
        except BaseException:
            for group, table in list(zip(self.store.groups, self.tables, strict=True))[:done]:
                group.pool.truncate(table, table.num_tokens - num_new)
            raise

    def _num_new_rows(self, num_new: int) -> int:
        """How many of the next `num_new` tokens get rows in pages: all but those that an encoder reads."""
        return self.num_decoded(self.num_tokens + num_new) - self.num_decoded(self.num_tokens)

    def cancel_begin(self) -> None:
        self._truncate(self.num_tokens)

    def _truncate(self, num_tokens: int) -> None:
        """Cut the page tables to the first `num_tokens` tokens and free the pages after them."""
        for group, table in zip(self.store.groups, self.tables, strict=True):
            group.pool.truncate(table, self.num_decoded(num_tokens))

    def plan_forward(self, num_new: int) -> None:
        self.store.plan([self.tables], self._num_new_rows(num_new))

    def commit(self, num_tokens: int) -> list[RowDelta]:
        deltas = super().commit(num_tokens)
        for group, table in zip(self.store.groups, self.tables, strict=True):
            if group.window is not None:
                group.pool.slide(table, max(0, self.num_decoded(num_tokens) - group.window + 1))
        lost = self.lost.at(self.num_decoded(num_tokens)) if self.keeper is not None else None
        if self.keeper is not None and lost is not None and lost.pages:
            evicted = self.keeper.positions_of(lost.pages)
            for layer in self.store.groups[0].layers:
                positions = evicted.expand(layer.num_kv_heads, -1) + self.num_source
                deltas[layer.index] = replace(deltas[layer.index], evicted=(positions,))
        return deltas

    @torch.inference_mode()
    def fork_from(self, other: SequenceCache, num_tokens: int, *, as_itself: bool = False) -> bool:
        """Share every page of the other sequence; the first of the two to write to a shared page gets a copy of it."""
        if not isinstance(other, PagedCache) or other.store is not self.store:
            return False
        self.why_not_reused = other.why_not_reused if as_itself else Forked(other.tables[0].seq_id)
        self.hit_tokens = other.hit_tokens if as_itself else 0
        if num_tokens != other.num_tokens and any(layer.has_state for layer in other.layers):
            return False
        seq_ids = [table.seq_id for table in self.tables]
        for number, group in enumerate(self.store.groups):
            mine, forked = self.tables[number], group.pool.fork(other.tables[number], seq_ids[number])
            group.tables.remove(mine)
            self.tables[number] = forked
            group.tables.append(forked)
        self._restore_backup(self._copied_unpaged(other.model_cache))
        if other.keeper is not None:
            self.keeper = other.keeper.fork(self.keeper.seq_id if self.keeper else seq_ids[0])
            self.lost = other.lost.copy()
        self.num_tokens, self.ended_at, self.by_hand = other.num_tokens, other.ended_at, other.by_hand
        if not self._crop_fork(num_tokens):
            return False
        if self.keeper is not None and not as_itself:
            self.forget_past()
        return True

    def copy_from(self, other: SequenceCache) -> None:
        """Copy the rows into pages of this pool, with the same pages missing as in the other cache; raises
        `PoolExhausted` if the pool is too small."""
        assert isinstance(other, PagedCache)
        self.restore(other.stored(other.num_tokens))
        self.by_hand = other.by_hand

    def unshare_last_page(self) -> None:
        """Unshare it now instead of at the first write, so that what the prefix cache still finds does not depend on
        whether other sequences share the page at that time."""
        self.begin(1)
        self._truncate(self.num_tokens)

    def set_owner(self, seq_id: int) -> None:
        for group, table in zip(self.store.groups, self.tables, strict=True):
            group.pool.relabel(table, seq_id)

    def page_counts(self) -> PageCounts:
        held = shared = 0
        for group, table in zip(self.store.groups, self.tables, strict=True):
            mine = table.held_pages
            held += len(mine)
            if group.pool.counts().num_shared:
                shared += sum(group.pool.ref_count(page_id) > 1 for page_id in mine)
        return PageCounts(held, shared, self.hit_tokens, self.store.why_no_sharing or self.why_not_reused)

    def register_prefix(self, token_ids: Listing[int]) -> None:
        """Make full pages findable by their tokens, and write them through to the host tier.

        Not for rows that were computed after others had been evicted or edited: they differ from what the same tokens
        give in another sequence.
        """
        if self.by_hand or self.store.why_no_sharing:
            return
        if self.ended_at is None or self.num_tokens <= self.ended_at:
            self.store.write_through(self.store.groups[0].pool.commit(self.tables[0], token_ids))

    @torch.inference_mode()
    def crop(self, num_tokens: int) -> bool:
        now = self.planned_tokens
        if num_tokens > now or not self.by_hand.knows(num_tokens):
            return False
        if not all(layer.knows(num_tokens) for layer in self.layers) or 0 < num_tokens <= self.num_source:
            return False
        is_kept = self._backup is not None and self._backup[0] == num_tokens
        has_state = any(layer.has_state for layer in self.layers) and not is_kept
        if has_state and not num_tokens == self.num_tokens == now:
            return False  # an unfinished forward may have changed some of the recurrent states
        if self.keeper is not None and not self._restore_pages(self.keeper, num_tokens):
            return False
        self._truncate(num_tokens)
        if self.num_source:
            for layer in self.layers:
                layer.crop(num_tokens)
        if is_kept and self._backup is not None:
            self._restore_backup(self._backup[1])
        self._note_back(num_tokens)
        return True

    def close(self) -> None:
        """Free every page; the cache is not used again."""
        for group, table in zip(self.store.groups, self.tables, strict=True):
            group.pool.release(table)
            group.tables.remove(table)

    @property
    def keeps_all_rows(self) -> bool:
        has_all = not any(table.num_evicted_pages for table in self.tables)
        return not self.store.spec.is_compressed and self._maps_row_for_row and has_all

    @property
    def _maps_row_for_row(self) -> bool:
        """Whether every layer is paged and can hold every row, so that the rows of another layout can be copied into
        pages."""
        group, *others = self.store.groups
        if self.num_source:
            return not others and group.window is None and not self.spec.retention.watches_all
        return not others and not self.store.why_no_sharing

    # ---- storing and restoring -----------------------------------------------------------------------------------

    def stored(self, num_tokens: int) -> StoredCache:
        found = super().stored(num_tokens)
        pages = self.page_ids_at(num_tokens)
        tables = tuple(
            StoredTable(tuple(layers), self.store.page_size, tuple(page_ids), group.window)
            for group, layers, page_ids in zip(self.store.groups, self._paged_layers, pages, strict=True)
        )
        if self.keeper is not None:
            found = self._with_memory(found, self.keeper)
        return replace(found, tables=tables)

    def _with_memory(self, found: StoredCache, keeper: PageKeeper) -> StoredCache:
        """The stored cache with the rule's memory for each layer."""
        own, memory = self.num_decoded(found.num_tokens), keeper.memory
        is_lost = False
        if found.num_tokens < self.num_tokens and keeper.rule.remembers:
            is_lost, memory = not self.lost.knows_memory(own), self.lost.memories_at(own) or {}
        why_not = "what its rule remembered then is not known any more" if is_lost else ""
        layers = {i: replace(each, memory=memory.get(i), why_not=why_not) for i, each in found.layers.items()}
        return replace(found, layers=layers)

    @torch.inference_mode()
    def restore(self, stored: StoredCache) -> None:
        """Fill the cache, taking new pages of the pool in the same logical order and with the same pages missing.
        Raises `PoolExhausted` where the pool has too few."""
        for number, (group, kept) in enumerate(zip(self.store.groups, stored.tables, strict=True)):
            held = [place for place, page_id in enumerate(kept.page_ids) if page_id]
            num_slid = 0 if group.window is None else held[0]
            old = self.tables[number]
            count = self.num_decoded(stored.num_tokens)
            table = PageTable.of_gaps(old.seq_id, self.store.page_size, count, num_slid)
            group.pool.restore_pages(table, held)
            group.tables[group.tables.index(old)] = self.tables[number] = table
        super().restore(stored)
        if self.keeper is not None:
            self.keeper.memory = {i: each.memory for i, each in stored.layers.items() if each.memory is not None}
            if self.tables[0].num_evicted_pages:
                self.forget_past()

    def clear(self) -> None:
        for group, table in zip(self.store.groups, self.tables, strict=True):
            group.pool.release(table)
        super().clear()
        self.keeper = self._new_keeper(self.tables[0].seq_id)

    @torch.inference_mode()
    def convert_from(self, other: SequenceCache) -> bool:
        """Copy the rows of another layout into pages; False if they cannot be carried over exactly."""
        self.why_not_reused = Converted() if other.num_tokens else None
        if other.spec.recomputes or not self._maps_row_for_row or not other.keeps_all_rows:
            return False
        self.begin(other.num_tokens)
        self.plan_forward(other.num_tokens)
        self._append_rows_of(other)
        self.commit(other.num_tokens)
        self.by_hand = other.by_hand
        return True

    # ---- eviction of pages -------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def compress(self, num_tokens: int, num_prompt_tokens: int, probe: Probe | None) -> tuple[Evicted, ...]:
        """From the end of the prompt on, evict the pages over budget from this sequence, in all full-attention layers
        at once."""
        if self.keeper is None:
            return ()
        group, table, rule = self.store.groups[0], self.tables[0], self.keeper.rule
        device = self.store.rows_of[group.layers[0].index][0].device
        is_over, was_over = num_tokens >= num_prompt_tokens, self.ended_at is not None

        def keys_of(layer: int) -> torch.Tensor:
            return self.store.rows(table, layer).keys[0]

        positions, pinned = held_positions(table, device), self.by_hand.pinned.behind(self.num_source)
        cut, memory = self.keeper.plan(table, is_over, was_over, probe, keys_of, positions, pinned)
        lost = self.keeper.lost_with(table, cut, self.num_decoded(self.num_tokens), self.store.rows_of)
        if lost is not None:
            self.lost.add(lost)
        self.keeper.apply(table, cut, memory, is_over)
        if is_over and not was_over:
            self.ended_at = num_tokens
        if rule.has_large_memory and not was_over:
            self.lost.memory_floor = table.num_tokens
        if cut is None:
            return ()
        group.pool.evict_from(table, cut.numbers)
        return self.keeper.evictions(cut, self.num_source)

    def knows(self, num_tokens: int) -> bool:
        """Rows in pages are written once, so earlier rows are a prefix of the present ones unless pages were evicted
        since."""
        if num_tokens >= self.num_tokens:
            return True
        own = self.num_decoded(num_tokens)
        has_all = own >= self.lost.floor and not any(step.pages for step in self.lost.since(own))
        return has_all and super().knows(num_tokens)

    def page_ids_at(self, num_tokens: int) -> list[list[int]]:
        """For each page table, the pages in logical order when the sequence had `num_tokens` tokens. 0 stands for a
        page that left the window, or was evicted so long ago that the log no longer has it."""
        num_tokens = self.num_decoded(num_tokens)
        count = -(-num_tokens // self.store.page_size)
        tables = [table.page_ids[:count] for table in self.tables]
        for step in self.lost.since(num_tokens):
            for number, page_id in step.pages.items():
                if number < count:
                    tables[0][number] = page_id
        return tables

    def all_bytes(self) -> list[HeldBytes]:
        found = super().all_bytes()
        for index, memory in self.keeper.memory.items() if self.keeper else ():
            found[index] = found[index]._replace(scores=0 if memory is None else int(memory.nbytes))
        return found

    @property
    def planned_tokens(self) -> int:
        """Tokens that have room in pages, including those of an unfinished forward."""
        count = self.tables[0].num_tokens
        return count + self.num_source if count else 0

    def _restore_pages(self, keeper: PageKeeper, num_tokens: int) -> bool:
        """Restore pages and the rule's memory as they were at `num_tokens` tokens. Returns False, and does nothing,
        where the log no longer has them or the pool has too few pages."""
        pool, table = self.store.groups[0].pool, self.tables[0]
        num_tokens = self.num_decoded(num_tokens)
        later, count = self.lost.since(num_tokens), -(-num_tokens // self.store.page_size)
        is_known = num_tokens >= self.lost.floor and self.lost.knows_memory(num_tokens)
        if num_tokens not in (0, table.num_tokens) and not is_known:
            return False
        # a step that failed may have logged pages that it did not drop
        gone = {n for step in later for n in step.pages if n < count and not table.page_ids[n]}
        behind = table.page_ids[count:]
        room = pool.num_available_pages + sum(pool.ref_count(page_id) == 1 for page_id in behind if page_id)
        if len(gone) > room:
            return False
        pool.truncate(table, num_tokens)
        pool.restore_pages(table, sorted(gone))
        keeper.write_back(table, gone, later, self.store.rows_of)
        if num_tokens == 0 or (later and later[0].memory_at == num_tokens):
            keeper.memory = self.lost.memories_at(num_tokens) or {}
        self.num_restored = len(gone) * self.store.page_size
        return True

    # ---- a row ahead of the counted tokens ---------------------------------------------------------------------------

    def can_write_ahead(self, num_tokens: int, num_sequences: int = 1) -> bool:
        """Whether the row at position `num_tokens` can be written ahead.

        Not if that takes a page out of a window that is still read at `num_tokens`. If the row starts a new page, the
        next pages of the pool must be free: the page is in no table and no event names it until the step takes the same
        page again. It must not be a cached page, whose tokens would be lost for nothing if the text ends there; nor may
        the page that is now full be replaced by a duplicate, or be copied to the host, which waits for all queued work.
        """
        if self.by_hand or self.num_source or self.keeper is not None or self._unpaged:
            return False
        size, may_begin = self.store.page_size, not (self.store.spec.replace_duplicates or self.store.host)
        for group, table in zip(self.store.groups, self.tables, strict=True):
            if group.window is not None and (num_tokens - group.window + 1) // size > table.num_slid_pages:
                return False
            begins = table.num_slack_tokens == 0 and may_begin and group.pool.are_next_free(num_sequences)
            if not (begins or group.pool.has_room(table, 1)):
                return False
        return True

    def uncount_row(self, num_tokens: int) -> None:
        self._uncounted_in = [table.page_ids[-1] for table in self.tables]
        self._undo_append(num_tokens)

    def count_row(self) -> None:
        """Nothing to do: `begin` has counted the row in the tables, and must have given it the same page again."""
        assert self._uncounted_in == [table.page_ids[-1] for table in self.tables]

    @torch.inference_mode()
    def clear_row_ahead(self, num_tokens: int) -> None:
        self._undo_append(num_tokens)
        for group, table in zip(self.store.groups, self.tables, strict=True):
            if table.num_slack_tokens:  # else the row is in a free page, where nobody reads it
                slot = table.slot(num_tokens - 1) + 1
                for layer in group.layers:
                    for rows in self.store.rows_of[layer.index]:
                        rows.clear(slice(slot, slot + 1))

    def _undo_append(self, num_tokens: int) -> None:
        """Take the room of the row at position `num_tokens` back out of the tables, where it is counted."""
        for group, table in zip(self.store.groups, self.tables, strict=True):
            if table.num_tokens > num_tokens:
                group.pool.undo_append(table)

    # ---- edits by hand -----------------------------------------------------------------------------------------------

    def prepare_write(self, writes: Listing[RowWrite]) -> None:
        """Make the pages that will be written this sequence's own: shared ones are copied, and the prefix cache forgets
        the pages from the first of them on."""
        touched: dict[int, set[int]] = {}
        size = self.store.page_size
        for write in writes:
            start, stop = map(self.num_decoded, (write.span.start, write.span.stop))
            pages = range(start // size, -(-stop // size))
            for number, layers in enumerate(self._paged_layers):
                if write.layer in layers:
                    touched.setdefault(number, set()).update(pages)
        for number, mine in touched.items():
            group, table = self.store.groups[number], self.tables[number]
            for copied in group.pool.make_writable(table, sorted(mine)):
                self.store.copy_page(group, copied)

    def check_pinned(self, pinned: RowMarks) -> None:
        if self.keeper is None:
            super().check_pinned(pinned)
        else:
            self.check_are_decoded(pinned.layers)
            self.keeper.check_pinned(self.tables[0], pinned.behind(self.num_source))

    def drop_rows(self, spans: Mapping[int, torch.Tensor]) -> None:
        """Drop whole pages, in all layers at once; raises `InputError` for anything else."""
        self.check_are_decoded(spans)
        group, table = self.store.groups[0], self.tables[0]
        size, heads = self.store.page_size, {layer.index: layer.num_kv_heads for layer in group.layers}
        source, positions = self.num_source, next(iter(spans.values()))[0]
        first, stop = int(positions[0]) - source, int(positions[-1]) + 1 - source
        has_all = spans.keys() == heads.keys() and all(len(spans[index]) == heads[index] for index in heads)
        if not has_all or first % size or stop % size:
            raise InputError(
                f"A page holds {size} rows of all layers and heads, so whole pages are dropped: name every layer and "
                f"head and positions from {source + first // size * size} to {source - (-stop // size) * size}, or "
                "mask the rows."
            )
        numbers = range(first // size, stop // size)
        if self.keeper is not None:
            cut = PageCut(tuple(numbers), (0.0,) * len(numbers), None)
            lost = self.keeper.lost_with(table, cut, None, self.store.rows_of)
            assert lost is not None
            self.lost.add(lost)
            self.keeper.apply(table, cut, dict(self.keeper.memory), self.ended_at is not None)
        group.pool.evict_from(table, numbers)
        self.note_edit(source + first)

    @property
    def needs_own_forward(self) -> bool:
        return super().needs_own_forward or any(table.num_evicted_pages for table in self.tables)

    # ---- recurrent states beside edited rows: recomputing the tokens would not restore them ------------------------

    @property
    def _unpaged(self) -> list[int]:
        paged = {index for layers in self._paged_layers for index in layers}
        return [index for index in range(len(self.model_cache.layers)) if index not in paged]

    @torch.inference_mode()
    def _copied_unpaged(self, model_cache: Any) -> dict[int, Any]:
        return {index: copy.deepcopy(model_cache.layers[index]) for index in self._unpaged}

    @property
    def _needs_backup(self) -> bool:
        return bool(self.by_hand) and any(layer.has_state for layer in self.layers)


# ---- one layer, which is its own handle -----------------------------------------------------------------------------


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
        keys, values = (stored.read(plan.reads) for stored in self.store.rows_of[self.layer_index])
        if (batch := self.store.batch) == 1:
            return keys[None], values[None]
        keys, values = (rows.view(len(rows), batch, -1, rows.shape[2]) for rows in (keys, values))
        return keys.transpose(0, 1), values.transpose(0, 1)

    def write(self, keys: torch.Tensor, values: torch.Tensor) -> GroupPlan:
        """Write rows `[B, H_kv, T, D]` to their slots; returns the forward's plan."""
        plan = self.store.plans[self.group]
        for stored, new in zip(self.store.rows_of[self.layer_index], (keys, values), strict=True):
            stored.write(plan.writes, new[0] if len(new) == 1 else new.transpose(0, 1).flatten(1, 2))
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
