"""Where one forward of some sequences writes and reads in the pages of one group of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from engine.cache.paged.rows import Slots
from engine.cache.paged.slots import held_slots
from engine.cache.paged.table import PageTable


@dataclass(eq=False)
class GroupPlan:
    """`tables` are those of the sequences of the forward, which feeds `num_new` tokens of each; the longest of them had
    `longest` tokens before, in any group. In columns of the right-aligned batch, `held` rows were there before, and the
    leftmost stands in column `first`."""

    tables: Sequence[PageTable]
    num_new: int
    longest: int
    device: torch.device

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

    @cached_property
    def reads_of(self) -> list[Slots]:
        """Slots of all rows of each sequence, a slice where they lie in one run."""
        return [held_slots(t, t.first_held_position, t.num_tokens, self.device) for t in self.tables]

    @cached_property
    def reads(self) -> Slots:
        """Slots of all rows of all sequences, right-aligned, `[B * S]`; the null page stands for padding."""
        if len(self.tables) == 1:
            return self.reads_of[0]
        index = torch.zeros(len(self.tables), self._width, dtype=torch.long, device=self.device)
        for row, table in zip(index, self.tables, strict=True):
            slots = held_slots(table, table.first_held_position, table.num_tokens, self.device, as_tensor=True)
            row[self._width - len(slots) :] = slots
        return index.flatten()
