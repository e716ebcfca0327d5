"""Which pages of a pool the queries of a forward read, as the tensors of a flex attention block mask: for a kernel that
reads pages in place.

Pages are listed in the order of the sequence, not of the pool, so that the order of summation, and with it the result,
does not depend on where in the pool the pages are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

QUERIES = 128  # queries in a block; the queries of a block share one list of pages


@dataclass(frozen=True, eq=False)
class PageBlocks:
    """The pages that each block of queries reads.

    `places` `[B, T]`: positions of the queries, -1 for padding. `numbers` `[B, pages]`: which page of its sequence a
    page of the pool is, -1 if it is no page of that sequence. `partly` and `wholly`: for each block of `QUERIES`
    queries, the pages that are read in part and the pages that are read completely, as a count `[B, 1, Q]` and a list
    of page ids `[B, 1, Q, pages]`, in which entries beyond the count mean nothing.
    """

    places: torch.Tensor
    numbers: torch.Tensor
    partly: tuple[torch.Tensor, torch.Tensor]
    wholly: tuple[torch.Tensor, torch.Tensor]
    page_size: int
    window: int | None

    @classmethod
    def of(
        cls, table: torch.Tensor, places: torch.Tensor, num_pages: int, page_size: int, window: int | None = None
    ) -> PageBlocks:
        """The blocks for queries at `places` `[B, T]`. `table` `[B, W]` has the page ids of each sequence in order,
        padded with 0. Sequences and queries are padded to powers of two, so that few shapes have to be compiled."""
        batch, count = places.shape
        more, longer = next_power_of_two(batch) - batch, (next_power_of_two(count) if count > 1 else 1) - count
        table, places = (torch.nn.functional.pad(part, pad, value=value) for part, pad, value in (
            (table, (0, 0, 0, more), 0), (places, (0, longer, 0, more), -1)))  # fmt: skip
        order = torch.arange(table.shape[1], device=table.device, dtype=torch.int32)
        numbers = torch.full((len(table), num_pages), -1, device=table.device, dtype=torch.int32)
        numbers.scatter_(1, table, order.expand(len(table), -1))
        numbers[:, 0] = -1
        blocks = torch.nn.functional.pad(places, (0, -places.shape[1] % QUERIES), value=-1).view(
            len(places), -1, QUERIES
        )
        first, last = blocks[:, :, :1], blocks.amax(2, keepdim=True)
        begins = order * page_size
        ends = begins + page_size - 1
        read = (table > 0)[:, None] & (begins <= last)
        whole = read & (ends <= first)
        if window is not None:
            read &= ends > first - window
            whole &= read & (begins > last - window)
        partly, wholly = (page_lists(some, table, num_pages) for some in (read & ~whole, whole))
        return cls(places.int(), numbers, partly, wholly, page_size, window)


def next_power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()


def page_lists(chosen: torch.Tensor, table: torch.Tensor, num_pages: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each block, the number of chosen columns `[B, 1, Q]` of a table (`chosen` `[B, Q, W]`), and their page ids in
    order `[B, 1, Q, num_pages]`: the length of the list does not depend on the sequence."""
    places = torch.where(chosen, chosen.cumsum(2) - 1, num_pages)
    pages = torch.zeros(*chosen.shape[:2], num_pages + 1, device=table.device, dtype=torch.int32)
    pages.scatter_(2, places, table[:, None].expand(chosen.shape).int())
    return chosen.sum(2, dtype=torch.int32)[:, None], pages[:, None, :, :num_pages].contiguous()
