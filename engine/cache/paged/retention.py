"""Eviction of whole pages of one sequence: which pages, the reason, and how their rows are logged and restored.

A page holds rows of all layers, so it is kept or evicted in all of them: its score is the mean of its rows' scores over
tokens, kv heads and layers. Pages with a sink or one of the latest rows stay. An evicted page leaves this sequence's
table only: other sequences keep it if they share it, else the pool gets it back.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

import numpy as np
import torch

from engine.cache.attention_probe import Probe
from engine.cache.by_hand import RowMarks
from engine.cache.compressed.retention import LayerView, rule_of
from engine.cache.lost_rows import Lost, LostStep
from engine.cache.paged.rows import PageRows, slots_of
from engine.cache.paged.table import PageTable
from engine.errors import InputError
from engine.geometry.dimensions import LayerGeometry
from engine.spec.retention import RetentionSpec
from engine.wire.records import Eviction

MemoryOfLayers = dict[int, torch.Tensor | None]
PageRowsOf = dict[int, tuple[PageRows, PageRows]]


@dataclass(frozen=True, eq=False)
class PageCut:
    """The pages to evict: their indices in the table, ascending, and their scores; and the lowest score among the pages
    that stay without being protected."""

    numbers: tuple[int, ...]
    scores: tuple[float, ...]
    lowest_kept: float | None


class PageKeeper:
    """The eviction rule of one sequence in pages, and its `memory` by layer."""

    def __init__(
        self, retention: RetentionSpec, layers: tuple[LayerGeometry, ...], page_size: int, seq_id: int
    ) -> None:
        self.retention, self.rule = retention, rule_of(retention)
        self._heads = {layer.index: layer.num_kv_heads for layer in layers}
        self._layers = tuple(self._heads)
        self._page_size, self.seq_id = page_size, seq_id
        self.memory: MemoryOfLayers = {}

    # ---- one step ------------------------------------------------------------------------------------------------

    def plan(
        self,
        table: PageTable,
        is_over: bool,
        was_over: bool,
        probe: Probe | None,
        rows: Callable[[int], torch.Tensor],
        positions: torch.Tensor,
        pinned: RowMarks,
    ) -> tuple[PageCut | None, MemoryOfLayers]:
        """Decide what to evict after a forward, and compute the rule's new memory. Changes nothing.

        `is_over`: the prompt has ended, `was_over`: before this step. `rows` gives a layer's keys `[H_kv, S, D]`,
        `positions` `[S]` their positions; pages with a row `pinned` in any layer stay.
        """
        memory = dict(self.memory)
        if self.rule.remembers and probe is not None:
            for layer in self._layers:
                memory[layer] = self.rule.remember(memory.get(layer), probe, layer, self._heads[layer])
        is_time = is_over and not (self.retention.only_at_prompt_end and was_over)
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

    def lost_with(
        self, table: PageTable, cut: PageCut | None, before: int | None, stored: PageRowsOf
    ) -> LostStep | None:
        """What evicting these pages, and a step after `before` tokens, removes: the pages' rows, and the rule's memory;
        None if nothing. Without `before` the memory is not logged."""
        memory_at = before if self.rule.is_per_row else None
        if cut is None and memory_at is None:
            return None
        layers = {}
        for layer in self._layers:
            memory = None if memory_at is None else self.memory.get(layer)
            if cut is None:
                layers[layer] = Lost(memory=memory)
                continue
            slots = slots_of(table, cut.numbers, stored[layer][0].device)
            keys, values = (part.codes(slots) for part in stored[layer])
            layers[layer] = Lost(keys, values, memory=memory)
        pages = {number: table.page_ids[number] for number in cut.numbers} if cut else {}
        return LostStep(table.num_tokens, layers, memory_at, pages)

    def apply(self, table: PageTable, cut: PageCut | None, memory: MemoryOfLayers, is_over: bool) -> None:
        """Take over the new memory of a plan, without the rows of evicted pages. The caller evicts the pages from the
        table afterwards."""
        if cut is not None and self.rule.is_per_row:
            is_left = ~torch.isin(torch.tensor(table.held_numbers), torch.tensor(cut.numbers))
            stays = is_left.repeat_interleave(self._page_size)[: table.num_held_tokens]
            memory = {layer: None if m is None else m[:, stays.to(m.device)] for layer, m in memory.items()}
        # a rule that evicts only once needs no memory any more
        self.memory = {} if is_over and self.retention.only_at_prompt_end else memory

    def positions_of(self, pages: Iterable[int]) -> torch.Tensor:
        """Positions `[E]` of the rows in these pages of the table."""
        return (torch.tensor([*pages])[:, None] * self._page_size + torch.arange(self._page_size)).flatten()

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

    # ---- going back ------------------------------------------------------------------------------------------------

    def write_back(self, table: PageTable, numbers: Container[int], lost: list[LostStep], stored: PageRowsOf) -> None:
        """Write the rows of the evicted pages `numbers` back, for which the caller has taken new pages."""
        size = self._page_size
        for step in lost:
            for place, number in enumerate(step.pages):
                for layer, rows in step.layers.items() if number in numbers else ():
                    for part, codes in zip(stored[layer], (rows.keys, rows.values), strict=True):
                        page = [code[:, place * size : (place + 1) * size] for code in codes]
                        part.restore(slots_of(table, (number,), part.device), page)

    def fork(self, seq_id: int) -> PageKeeper:
        """A keeper with the same memory for another sequence."""
        made = copy.copy(self)
        made.seq_id = seq_id
        return made
