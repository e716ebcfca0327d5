"""Eviction of whole pages of a sequence by a rule, and the restoring of evicted pages."""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.cache.attention_probe import Probe
from engine.cache.contract import Evicted, HeldBytes
from engine.cache.paged.editable import EditablePages
from engine.cache.paged.retention import PageKeeper
from engine.cache.paged.slots import held_positions
from engine.cache.stored import StoredCache


class EvictingPages(EditablePages):
    """The part of a paged cache that evicts pages; `keeper` is None where the spec evicts nothing."""

    def _new_keeper(self, seq_id: int) -> PageKeeper | None:
        """The eviction rule for the pages of full-attention layers, which are the first group; None where there is
        none."""
        group = self.store.groups[0]
        if self.store.spec.retention.keeps_all or group.window is not None:
            return None
        return PageKeeper(self.store.spec.retention, group.layers, self.store.page_size, seq_id)

    def probe(self, observe: bool) -> Probe | None:
        wanted = self.keeper.rule.probe() if self.keeper else None
        return wanted or super().probe(observe)

    @torch.inference_mode()
    def compress(self, num_tokens: int, num_prompt_tokens: int, probe: Probe | None) -> tuple[Evicted, ...]:
        """From the end of the prompt on, evict the pages over budget from this sequence, in all full-attention layers
        at once."""
        if self.keeper is None:
            return ()
        group, table = self.store.groups[0], self.tables[0]
        device = self.store.rows_of[group.layers[0].index][0].device
        is_over = num_tokens >= num_prompt_tokens

        def keys_of(layer: int) -> torch.Tensor:
            return self.store.rows(table, layer).keys[0]

        positions, pinned = held_positions(table, device), self.by_hand.pinned.behind(self.num_source)
        cut, memory = self.keeper.plan(table, is_over, probe, keys_of, positions, pinned)
        self.keeper.note(table, cut, memory, self.store.rows_of, is_over)
        if cut is None:
            return ()
        group.pool.drop(table, cut.numbers)
        return self.keeper.evictions(cut, self.num_source)

    def knows(self, num_tokens: int) -> bool:
        """Rows in pages are written once, so earlier rows are a prefix of the present ones unless pages were evicted
        since."""
        if num_tokens >= self.num_tokens:
            return True
        return super().knows(num_tokens) and (
            self.keeper is None or self.keeper.kept_all_since(self.num_decoded(num_tokens))
        )

    def page_ids_at(self, num_tokens: int) -> list[list[int]]:
        """For each page table, the pages in logical order when the sequence had `num_tokens` tokens. 0 stands for a
        page that left the window, or was evicted so long ago that the journal no longer has it."""
        num_tokens = self.num_decoded(num_tokens)
        count = -(-num_tokens // self.store.page_size)
        tables = [table.page_ids[:count] for table in self.tables]
        for number, entry in (self.keeper.dropped_since(num_tokens) if self.keeper else {}).items():
            tables[0][number] = entry.page_ids[entry.numbers.index(number)]
        return tables

    def shrink_journal(self, max_bytes: int) -> None:
        if self.keeper is not None:
            self.keeper.shrink_journal(max_bytes)

    @property
    def journal_bytes(self) -> int:
        return self.keeper.journal_bytes if self.keeper else 0

    def all_bytes(self) -> list[HeldBytes]:
        scores = self.keeper.score_bytes if self.keeper else {}
        return [held._replace(scores=scores.get(index, 0)) for index, held in enumerate(super().all_bytes())]

    @property
    def prompt_ended_at(self) -> int | None:
        ended_at = self.keeper.prompt_ended_at if self.keeper else None
        return super().prompt_ended_at if ended_at is None else ended_at + self.num_source

    def _with_memory(self, keeper: PageKeeper, found: StoredCache) -> StoredCache:
        """The stored cache with the eviction rule's state of each layer."""
        found = keeper.stored(found, self.num_decoded(found.num_tokens), found.num_tokens < self.num_tokens)
        ended_at = found.prompt_ended_at
        return found if ended_at is None else replace(found, prompt_ended_at=ended_at + self.num_source)

    @property
    def planned_tokens(self) -> int:
        """Tokens that have room in pages, including those of an unfinished forward."""
        count = self.tables[0].num_tokens
        return count + self.num_source if count else 0

    def _restore_pages(self, keeper: PageKeeper, num_tokens: int) -> bool:
        """Restore pages and the rule's state as they were at `num_tokens` tokens. Returns False, and does nothing,
        where the journal no longer has them or the pool has too few pages."""
        pool, table = self.store.groups[0].pool, self.tables[0]
        num_tokens = self.num_decoded(num_tokens)
        if not keeper.can_go_back(num_tokens, table.num_tokens):
            return False
        # a step that failed may have journaled pages that it did not drop
        gone = {n: entry for n, entry in keeper.dropped_since(num_tokens).items() if not table.page_ids[n]}
        behind = table.page_ids[-(-num_tokens // self.store.page_size) :]
        room = pool.num_available_pages + sum(pool.ref_count(page_id) == 1 for page_id in behind if page_id)
        if len(gone) > room:
            return False
        pool.truncate(table, num_tokens)
        pool.restore_pages(table, sorted(gone))
        keeper.go_back(table, num_tokens, gone, self.store.rows_of)
        self.num_restored = len(gone) * self.store.page_size
        return True
