"""The cache of one sequence in pages: page tables in a shared store, shared prefixes, copy-on-write, sliding windows
and eviction of whole pages."""

from __future__ import annotations

import copy
from collections.abc import Sequence as Listing
from dataclasses import replace
from typing import Any

import torch

from engine.cache.by_hand import UNTOUCHED
from engine.cache.contract import PageCounts, Pair
from engine.cache.layers.handles import is_pageable
from engine.cache.paged.layer import PagedLayer
from engine.cache.paged.pages import PoolExhausted
from engine.cache.paged.pool import PagePool
from engine.cache.paged.row_ahead import RowAheadPages
from engine.cache.paged.store import PageStore
from engine.cache.paged.table import PageTable
from engine.cache.row_delta import RowDelta
from engine.cache.sequence_cache import SequenceCache
from engine.cache.stored import StoredCache, StoredTable
from engine.predict.capacity import cache_capacity, tokens_at_once
from engine.wire.prefix_match import Converted, Forked, PrefixMatch, WhyNotReused


class PagedCache(RowAheadPages):
    """The cache of one sequence in pages of a shared store. Layers that cannot be paged stay as transformers made
    them."""

    def __init__(self, store: PageStore, config: Any, max_length: int, seq_id: int, num_source: int = 0) -> None:
        self.store, self.num_source = store, num_source
        self.tables = [group.pool.open_table(seq_id) for group in store.groups]
        self.hit_tokens = 0
        self.why_not_reused: WhyNotReused | None = None
        self.keeper = self._new_keeper(seq_id)
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
        """`newest_rows` of every layer. The layers of a group have the same slots, which are computed once."""
        found: dict[int, Pair] = {}
        for layers, table in zip(self._paged_layers, self.tables, strict=True):
            first = max(self.num_decoded(first_position), table.first_held_position)
            if layers and first < table.num_tokens:
                found |= self.store.rows_of_layers(table, layers, first)
        paged = {index for layers in self._paged_layers for index in layers}
        for index in range(len(self.layers)):
            if index not in paged and (rows := self.newest_rows(index, first_position)) is not None:
                found[index] = rows.keys[0], rows.values[0]
        return dict(sorted(found.items()))

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
        if at_most is not None:
            match = match.cut(at_most // self.store.page_size)
        self.why_not_reused = pool.explain(match)
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
        self._keep_states()
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
        evicted = self.keeper.evicted_with(self.num_decoded(num_tokens)) if self.keeper else None
        if evicted is not None:
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
        theirs = other.live.layers
        self._put({index: copy.deepcopy(theirs[index]) for index in self._unpaged})
        if other.keeper is not None:
            self.keeper = other.keeper.fork(self.keeper.seq_id if self.keeper else seq_ids[0])
        self.num_tokens, self.by_hand = other.num_tokens, other.by_hand
        if num_tokens != other.num_tokens and not self._crop_fork(num_tokens):
            return False
        if self.keeper is not None and not as_itself:
            self.keeper.forget_journal(self.num_decoded(num_tokens))
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
        ended_at = self.keeper.prompt_ended_at if self.keeper else None
        if self.by_hand:
            return
        if not self.store.why_no_sharing and (ended_at is None or self.num_tokens <= ended_at):
            self.store.write_through(self.store.groups[0].pool.commit(self.tables[0], token_ids))

    @torch.inference_mode()
    def crop(self, num_tokens: int) -> bool:
        now = self.planned_tokens
        if num_tokens > now or not self.by_hand.knows(num_tokens):
            return False
        if not all(layer.knows(num_tokens) for layer in self.layers) or 0 < num_tokens <= self.num_source:
            return False
        is_kept = self._states is not None and self._states[0] == num_tokens
        has_state = any(layer.has_state for layer in self.layers) and not is_kept
        if has_state and not num_tokens == self.num_tokens == now:
            return False  # an unfinished forward may have changed some of the recurrent states
        if self.keeper is not None and not self._restore_pages(self.keeper, num_tokens):
            return False
        self._truncate(num_tokens)
        if self.num_source:
            for layer in self.layers:
                layer.crop(num_tokens)
        if is_kept:
            self._restore_kept_states()
        self.num_tokens, self.by_hand = num_tokens, self.by_hand.back_to(num_tokens)
        self._deltas.clear()
        return True

    def close(self) -> None:
        """Free every page; the cache is not used again."""
        for group, table in zip(self.store.groups, self.tables, strict=True):
            group.pool.release(table)
            group.tables.remove(table)

    @property
    def keeps_all_rows(self) -> bool:
        has_all = not any(table.num_dropped_pages for table in self.tables)
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
            found = self._with_memory(self.keeper, found)
        return replace(found, tables=tables)

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
            ended_at = stored.prompt_ended_at
            own = None if ended_at is None else self.num_decoded(ended_at)
            self.keeper.restore(stored, self.num_decoded(stored.num_tokens), own)

    def clear(self) -> None:
        for group, table in zip(self.store.groups, self.tables, strict=True):
            group.pool.release(table)
        self._set_live(self._build())
        self.keeper = self._new_keeper(self.tables[0].seq_id)
        self.num_tokens, self.by_hand = 0, UNTOUCHED

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
