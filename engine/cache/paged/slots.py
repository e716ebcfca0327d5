"""Computes which slots of a pool, and which positions, the rows of one sequence have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engine.cache.paged.table import PageTable
from engine.device import to_device


@dataclass(frozen=True, eq=False)
class HeldPages:
    """`count` rows in `pages` `[W]` that are not consecutive in the pool, from slot `offset` of the first page on."""

    pages: torch.Tensor
    page_size: int
    offset: int
    count: int

    @property
    def slots(self) -> torch.Tensor:
        """The slots of the rows, `[count]`."""
        slots = self.pages[:, None] * self.page_size + torch.arange(self.page_size, device=self.pages.device)
        return slots.flatten()[self.offset : self.offset + self.count]


def held_slots(table: PageTable, first: int, stop: int, device: torch.device, as_tensor: bool = False) -> Any:
    """Slots of positions `first … stop - 1`: a slice where they are consecutive (read without a copy), else a
    tensor."""
    found = held_pages(table, first, stop, device, as_pages=as_tensor)
    return found if isinstance(found, slice) else found.slots


def held_pages(
    table: PageTable, first: int, stop: int, device: torch.device, as_pages: bool = False
) -> slice | HeldPages:
    """Where positions `first … stop - 1` are: a slice of slots if these are consecutive, else pages, because copying
    whole pages takes less time than copying rows."""
    size = table.page_size
    pages = table.page_ids[first // size : -(-stop // size)]
    offset = first % size
    if table.num_evicted_pages:
        pages = [page_id for page_id in pages if page_id]
        stop = first + len(pages) * size - offset + (stop - -(-stop // size) * size)
    if not as_pages and (not pages or pages == list(range(pages[0], pages[0] + len(pages)))):
        begin = pages[0] * size + offset if pages else 0
        return slice(begin, begin + stop - first)
    return HeldPages(to_device(torch.tensor(pages, dtype=torch.long), device), size, offset, stop - first)


def held_positions(table: PageTable, device: torch.device) -> torch.Tensor:
    """Positions `[S]` of the rows that a sequence holds, ascending."""
    numbers = to_device(torch.tensor(table.held_numbers), device)
    positions = (numbers[:, None] * table.page_size + torch.arange(table.page_size, device=device)).flatten()
    return positions[: table.num_held_tokens]


def slots_of(table: PageTable, numbers: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Slots of all rows of some pages, given by their index in the table."""
    pages = to_device(torch.tensor([table.page_ids[number] for number in numbers]), device)
    return (pages[:, None] * table.page_size + torch.arange(table.page_size, device=device)).flatten()
