"""Which slots one forward of some sequences writes and reads, in the pages of one group of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from engine.cache.paged.blocks import PageBlocks
from engine.cache.paged.rows import Reads
from engine.cache.paged.slots import held_pages, held_slots
from engine.cache.paged.table import PageTable
from engine.device import to_device
from engine.wire.pages import NULL_PAGE_ID


@dataclass(eq=False)
class GroupPlan:
    """The slots of one forward in one group of layers.

    `tables` are those of the sequences; each computes `num_new` tokens. `longest` is the number of tokens that the
    longest sequence had before (evicted pages included). In the right-aligned batch each sequence has `held` columns of
    earlier rows, and the leftmost column is at position `first` of the longest one. `is_in_place`: attention reads the
    pages itself, so that layers return only the new rows.
    """

    tables: Sequence[PageTable]
    num_new: int
    longest: int
    device: torch.device
    window: int | None = None
    is_in_place: bool = False
    _blocks: PageBlocks | None = None

    @property
    def held(self) -> int:
        return self._width - self.num_new

    @property
    def first(self) -> int:
        return self.longest + self.num_new - self._width

    @cached_property
    def _width(self) -> int:
        return max(table.num_held_tokens for table in self.tables)

    @cached_property
    def writes(self) -> torch.Tensor:
        """Slots `[B * T]` of the new rows."""
        stops = ((table, table.num_tokens) for table in self.tables)
        return torch.cat([held_slots(t, n - self.num_new, n, self.device, as_tensor=True) for t, n in stops])

    def slack(self) -> torch.Tensor | None:
        """Slots after the new rows in pages that this forward starts. A kernel that reads whole pages reads them too,
        so they must be cleared of what an earlier owner left, which may be NaN. None where no page is started."""
        slots = []
        for table in self.tables:
            rest, size = table.num_slack_tokens, table.page_size
            if rest and size - rest <= self.num_new:
                begin = (table.page_ids[-1] + 1) * size
                slots.append(torch.arange(begin - rest, begin, device=self.device))
        return torch.cat(slots) if slots else None

    def blocks(self, num_pages: int) -> PageBlocks:
        """The pages that the queries read in place, in a pool of `num_pages`; computed once for each plan."""
        if self._blocks is None:
            width = max(len(table.page_ids) for table in self.tables)
            ids = [table.page_ids + [NULL_PAGE_ID] * (width - len(table.page_ids)) for table in self.tables]
            stops = to_device(torch.tensor([[table.num_tokens] for table in self.tables]), self.device)
            places = stops + torch.arange(-self.num_new, 0, device=self.device)
            table, size = to_device(torch.tensor(ids), self.device), self.tables[0].page_size
            self._blocks = PageBlocks.of(table, places, num_pages, size, self.window)
        return self._blocks

    def mask_of(self, number: int, count: int) -> torch.Tensor | None:
        """Which of the rows held the newest `count` queries of a sequence read, `[1, 1, count, S]`; None for plain
        causal attention."""
        if self.window is None:
            return None
        table = self.tables[number]
        held = torch.arange(table.first_held_position, table.num_tokens, device=self.device)
        places = held[-count:, None]
        return ((held <= places) & (held > places - self.window))[None, None]

    @cached_property
    def reads_of(self) -> list[Reads]:
        """Where all rows of each sequence are: a slice if they are consecutive, else pages."""
        return [held_pages(t, t.first_held_position, t.num_tokens, self.device) for t in self.tables]

    @cached_property
    def pages_of(self) -> list[list[slice]]:
        """Slots of the rows of each sequence, page by page."""
        size = self.tables[0].page_size
        starts = [[(number, table.page_ids[number] * size) for number in table.held_numbers] for table in self.tables]
        return [
            [slice(start, start + min(size, table.num_tokens - number * size)) for number, start in mine]
            for table, mine in zip(self.tables, starts, strict=True)
        ]

    @cached_property
    def reads(self) -> Reads:
        """Slots `[B * S]` of all rows of all sequences, right-aligned; the null page is the padding."""
        if len(self.tables) == 1:
            return self.reads_of[0]
        index = torch.zeros(len(self.tables), self._width, dtype=torch.long, device=self.device)
        for row, table in zip(index, self.tables, strict=True):
            slots = held_slots(table, table.first_held_position, table.num_tokens, self.device, as_tensor=True)
            row[self._width - len(slots) :] = slots
        return index.flatten()
