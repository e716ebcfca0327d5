"""Eviction of whole pages of one sequence: which pages, the reason, and how they are restored.

A page holds rows of all layers, so it is kept or evicted in all of them: its score is the mean of its rows' scores over
tokens, kv heads and layers. Pages with a sink or one of the latest rows stay. An evicted page leaves this sequence's
table only: other sequences keep it if they share it, else the pool gets it back.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from engine.cache.attention_probe import Probe
from engine.cache.by_hand import RowMarks
from engine.cache.compressed.retention import LayerView, rule_of
from engine.cache.journal import EvictionJournal
from engine.cache.paged.rows import PageRows
from engine.cache.paged.slots import slots_of
from engine.cache.paged.table import PageTable
from engine.cache.stored import StoredCache
from engine.errors import InputError
from engine.geometry.dimensions import LayerGeometry
from engine.spec.retention import RetentionSpec
from engine.wire.records import Eviction

JOURNAL_BYTES = 128 << 20  # limit for the rows of evicted pages, all layers together
MEMORY_BYTES = 32 << 20  # limit for the rule's states at earlier steps, all layers together

MemoryOfLayers = dict[int, torch.Tensor | None]
PageRowsOf = dict[int, tuple[PageRows, PageRows]]


@dataclass(frozen=True, eq=False)
class DroppedPages:
    """Pages evicted when the sequence had `at` tokens: their indices in the table (`numbers`), their page ids, and for
    each layer the stored tensors of K and of V."""

    at: int
    numbers: tuple[int, ...]
    page_ids: tuple[int, ...]
    codes: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]]

    @property
    def num_bytes(self) -> int:
        return sum(int(part.nbytes) for pair in self.codes.values() for parts in pair for part in parts)


@dataclass(frozen=True, eq=False)
class PageCut:
    """The pages to evict: their indices in the table, ascending, and their scores; and the lowest score among the pages
    that stay without being protected."""

    numbers: tuple[int, ...]
    scores: tuple[float, ...]
    lowest_kept: float | None


class PageKeeper:
    """The eviction rule of one sequence in pages: its state, its journal of evicted pages, and going back."""

    def __init__(
        self, retention: RetentionSpec, layers: tuple[LayerGeometry, ...], page_size: int, seq_id: int
    ) -> None:
        self.retention, self.rule = retention, rule_of(retention)
        self._heads = {layer.index: layer.num_kv_heads for layer in layers}
        self._layers = tuple(self._heads)
        self._page_size, self.seq_id = page_size, seq_id
        self._memory: MemoryOfLayers = {}
        self._journal: EvictionJournal[DroppedPages, MemoryOfLayers] = EvictionJournal(
            max_bytes=JOURNAL_BYTES, max_memory_bytes=MEMORY_BYTES
        )
        self.prompt_ended_at: int | None = None  # number of tokens at the first step at or after the prompt's end

    # ---- one step ------------------------------------------------------------------------------------------------

    def plan(
        self,
        table: PageTable,
        is_over: bool,
        probe: Probe | None,
        rows: Callable[[int], torch.Tensor],
        positions: torch.Tensor,
        pinned: RowMarks,
    ) -> tuple[PageCut | None, MemoryOfLayers]:
        """Decide what to evict after a forward, and compute the rule's new state. Changes nothing.

        `is_over`: the prompt has ended. `rows` gives a layer's keys `[H_kv, S, D]`, `positions` `[S]` their positions;
        pages with a row `pinned` in any layer stay.
        """
        memory = dict(self._memory)
        if self.rule.remembers and probe is not None:
            for layer in self._layers:
                memory[layer] = self.rule.remember(memory.get(layer), probe, layer, self._heads[layer])
        is_time = is_over and not (self.retention.only_at_prompt_end and self.prompt_ended_at is not None)
        pages = table.held_numbers
        num_kept = self.retention.num_kept_pages(table.num_tokens, self._page_size)
        seen = probe.rows() if probe is not None else {}
        has_seen = not self.retention.needs_weights or all(layer in seen for layer in self._layers)
        if not is_time or num_kept >= len(pages) or not has_seen:
            return None, memory
        scores = self._page_scores(rows, positions, memory, seen, self._recent(table.num_tokens))
        return self._cut(table, pages, scores, num_kept, self._pages_of(pinned)), memory

    def _pages_of(self, marks: RowMarks) -> set[int]:
        """Indices in the table of the pages that have a marked row."""
        places = (mask.any(0).nonzero()[:, 0] // self._page_size for mask in marks.layers.values())
        return {number for found in places for number in found.tolist()}

    def check_pinned(self, table: PageTable, pinned: RowMarks) -> None:
        """Raise `InputError` if the budget cannot hold the pages of pinned rows beside those that always stay."""
        num_kept = self.retention.num_kept_pages(max(table.num_tokens, self.retention.budget or 0), self._page_size)
        # one page more, as these rows may start in the middle of a page
        recent = -(-max(1, self._recent(table.num_tokens)) // self._page_size) + 1
        always = num_kept if self.retention.is_by_position else -(-self.retention.sinks // self._page_size) + recent
        count = len(self._pages_of(pinned))
        if always + count > num_kept:
            raise InputError(
                f"The {num_kept:,} pages that this mode keeps cannot hold {count:,} with pinned rows beside {always:,} "
                "that always stay: pin fewer, or give a larger budget."
            )

    def _page_scores(
        self,
        rows: Callable[[int], torch.Tensor],
        positions: torch.Tensor,
        memory: MemoryOfLayers,
        seen: dict[int, torch.Tensor],
        recent: int,
    ) -> torch.Tensor:
        """Mean score `[pages]` of the rows of every page held: all are full but the last."""
        total = torch.zeros(len(positions), dtype=torch.float64, device=positions.device)
        for layer in self._layers:
            keys = rows(layer)
            weights = seen[layer][0] if layer in seen else None
            view = LayerView(layer, keys, positions.expand(len(keys), -1), memory.get(layer), weights, recent)
            total += self.rule.score(view).double().mean(0).to(total.device)
        # waits for the device: the page table is on the host, so the host must know which pages are evicted
        total = total.cpu()
        padded = torch.nn.functional.pad(total / len(self._layers), (0, -len(total) % self._page_size))
        sums = padded.view(-1, self._page_size).sum(1)
        counts = torch.full_like(sums, self._page_size)
        counts[-1] = len(total) - self._page_size * (len(sums) - 1)
        return sums / counts

    def _recent(self, num_tokens: int) -> int:
        """How many of the latest rows stay whatever their score."""
        return self.retention.recent(self.retention.num_kept(num_tokens))

    def _cut(
        self, table: PageTable, pages: list[int], scores: torch.Tensor, num_kept: int, pinned: set[int]
    ) -> PageCut:
        """Choose the pages with the lowest scores; of pages with equal scores the older one stays."""
        size, seen = self._page_size, table.num_tokens
        recent = max(1, self._recent(seen))
        numbers = torch.tensor(pages)
        is_protected = (numbers * size < self.retention.sinks) | ((numbers + 1) * size > seen - recent)
        is_protected |= torch.tensor([number in pinned for number in pages])
        ranked = scores.masked_fill(is_protected, torch.inf).argsort(descending=True, stable=True)
        going = ranked[num_kept:].sort().values
        staying = ranked[:num_kept]
        merit = scores[staying][~is_protected[staying]]
        return PageCut(
            tuple(numbers[going].tolist()),
            tuple(scores[going].tolist()),
            float(merit.min()) if len(merit) else None,
        )

    def note(
        self, table: PageTable, cut: PageCut | None, memory: MemoryOfLayers, stored: PageRowsOf, is_over: bool
    ) -> None:
        """Carry out the bookkeeping of a plan: journal the pages' rows, and remove them from the rule's state. The
        caller drops the pages from the table afterwards."""
        entry = self._entry(table, cut, stored) if cut is not None else None
        if cut is not None and self.rule.is_per_row:
            stays = self._columns_that_stay(table, cut)
            memory = {layer: None if m is None else m[:, stays.to(m.device)] for layer, m in memory.items()}
        if is_over and self.retention.only_at_prompt_end:
            memory = {}  # such a rule evicts only once, and needs no state any more
        if entry is not None:
            self._journal.add(entry)
        self._memory = memory
        if is_over and self.prompt_ended_at is None:
            self.prompt_ended_at = table.num_tokens
        if self.rule.remembers and (self.rule.is_per_row or not memory):
            self._journal.note_memory(table.num_tokens, memory or None, memory_bytes(memory))

    def drop_by_hand(self, table: PageTable, numbers: tuple[int, ...], stored: PageRowsOf) -> None:
        """Journal pages that a user drops, whatever their scores; the caller drops them from the table."""
        cut = PageCut(numbers, (0.0,) * len(numbers), None)
        self.note(table, cut, dict(self._memory), stored, self.prompt_ended_at is not None)

    def _entry(self, table: PageTable, cut: PageCut, stored: PageRowsOf) -> DroppedPages:
        codes = {}
        for layer in self._layers:
            slots = slots_of(table, cut.numbers, stored[layer][0].device)
            keys, values = (part.codes(slots) for part in stored[layer])
            codes[layer] = (keys, values)
        page_ids = tuple(table.page_ids[number] for number in cut.numbers)
        return DroppedPages(table.num_tokens, cut.numbers, page_ids, codes)

    def _columns_that_stay(self, table: PageTable, cut: PageCut) -> torch.Tensor:
        stays = ~torch.isin(torch.tensor(table.held_numbers), torch.tensor(cut.numbers))
        return stays.repeat_interleave(self._page_size)[: table.num_held_tokens]

    def evicted_with(self, num_tokens: int) -> torch.Tensor | None:
        """Positions `[E]` of the rows evicted when the sequence had `num_tokens` tokens; None where there are none."""
        numbers = [number for entry in self._journal.since(num_tokens - 1) for number in entry.numbers]
        if not numbers:
            return None
        size = self._page_size
        return (torch.tensor(numbers)[:, None] * size + torch.arange(size)).flatten()

    def evictions(self, cut: PageCut, first: int = 0) -> tuple[Eviction, ...]:
        """The evicted rows as one record for each layer; all layers and heads evict the same. `first` is the position
        of the first row of the table's first page."""
        size = self._page_size
        positions = (first + np.array(cut.numbers, np.int64)[:, None] * size + np.arange(size)).ravel()
        scores = np.repeat(np.array(cut.scores, np.float32), size)
        positions.flags.writeable = scores.flags.writeable = False
        # rounded to float32, like the recorded scores
        lowest = None if cut.lowest_kept is None else float(np.float32(cut.lowest_kept))
        return tuple(
            Eviction(self.seq_id, layer, None, positions, scores, lowest, self.rule.words) for layer in self._layers
        )

    # ---- bytes -----------------------------------------------------------------------------------------------------

    @property
    def journal_bytes(self) -> int:
        """Bytes kept only in order to go back."""
        return self._journal.bytes_without(self._memory)

    @property
    def score_bytes(self) -> dict[int, int]:
        """Bytes of the rule's state, by layer."""
        return {layer: memory_bytes({layer: memory}) for layer, memory in self._memory.items()}

    # ---- going back ------------------------------------------------------------------------------------------------

    def can_go_back(self, num_tokens: int, now: int) -> bool:
        """Whether pages and the rule's state at `num_tokens` tokens can be restored; `now` is the present number of
        tokens."""
        if num_tokens == now or num_tokens == 0:
            return True
        if self.rule.remembers and not self._journal.knows_memory(num_tokens):
            return False
        return self._journal.knows_rows(num_tokens)

    def kept_all_since(self, num_tokens: int) -> bool:
        """Whether no page was evicted since the sequence had `num_tokens` tokens."""
        return self._journal.knows_rows(num_tokens) and not self._journal.since(num_tokens)

    def dropped_since(self, num_tokens: int) -> dict[int, DroppedPages]:
        """Pages, by index in the table, that the sequence had at `num_tokens` tokens and were evicted since, each with
        its journal entry."""
        pages = -(-num_tokens // self._page_size)
        undone = self._journal.since(num_tokens)
        return {number: entry for entry in undone for number in entry.numbers if number < pages}

    def go_back(self, table: PageTable, num_tokens: int, taken: dict[int, DroppedPages], stored: PageRowsOf) -> None:
        """Write the rows of the pages `taken` back, for which the caller has taken new pages, and restore the rule's
        state."""
        for number, entry in taken.items():
            place = entry.numbers.index(number)
            page = slice(place * self._page_size, (place + 1) * self._page_size)
            for layer, pair in entry.codes.items():
                for part, codes in zip(stored[layer], pair, strict=True):
                    part.restore(slots_of(table, (number,), part.device), [code[:, page] for code in codes])
        self._journal.back_to(num_tokens)
        known = self._journal.memory(num_tokens)
        if known is not None or num_tokens == 0:
            self._memory = known or {}
        if self.prompt_ended_at is not None and num_tokens < self.prompt_ended_at:
            self.prompt_ended_at = None

    # ---- storing and restoring -------------------------------------------------------------------------------------

    def stored(self, found: StoredCache, num_source: int, is_past: bool) -> StoredCache:
        """The stored cache with the rule's state for each layer. `num_source` of its tokens are not in pages;
        `is_past`: the cache is that of an earlier step."""
        ended_at, num_tokens = self.prompt_ended_at, max(0, found.num_tokens - num_source)
        memory = (self._journal.memory(num_tokens) or {}) if is_past else self._memory
        is_lost = self.rule.remembers and is_past and not self._journal.knows_memory(num_tokens)
        why_not = "what its rule remembered then is not known any more" if is_lost else ""
        layers = {i: replace(each, memory=memory.get(i), why_not=why_not) for i, each in found.layers.items()}
        is_over = ended_at is not None and num_tokens >= ended_at
        return replace(found, layers=layers, prompt_ended_at=ended_at + num_source if ended_at and is_over else None)

    def restore(self, stored: StoredCache, num_tokens: int, ended_at: int | None) -> None:
        """Restore the rule's state from a stored cache with `num_tokens` tokens in pages. If pages are missing from it,
        nothing before it can be restored."""
        self._memory = {i: each.memory for i, each in stored.layers.items() if each.memory is not None}
        self.prompt_ended_at = ended_at
        if self.rule.remembers and (self.rule.is_per_row or not self._memory):
            self._journal.note_memory(num_tokens, self._memory or None, memory_bytes(self._memory))
        if any(each.positions is not None for each in stored.layers.values()):
            self._journal.forget(num_tokens)

    def fork(self, seq_id: int) -> PageKeeper:
        """A keeper with the same state and journal for another sequence."""
        made = copy.copy(self)
        made.seq_id, made._journal = seq_id, self._journal.copy()
        return made

    def shrink_journal(self, max_bytes: int) -> None:
        """Drop the oldest journal entries until at most `max_bytes` are left."""
        self._journal.shrink(max_bytes)

    def forget_journal(self, num_tokens: int) -> None:
        """Drop the journal: nothing before the present can be restored any more."""
        self._journal.forget(num_tokens)


def memory_bytes(memory: MemoryOfLayers) -> int:
    """Bytes of a rule's state, over all layers."""
    return sum(int(m.nbytes) for m in memory.values() if m is not None)
