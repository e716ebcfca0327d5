"""K or V of one layer in pages, and which slots of a pool a forward writes and reads.

Rows are exact numbers, or the codes of a codec that encodes every row independently. A page of codes can be shared like
a page of exact numbers: once full it is never written again, and its numbers depend on its own rows only. Codecs that
wait for the end of a prompt, or share scales between rows, cannot be used here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from engine.cache.by_hand import write_slots
from engine.cache.compressed.codecs import row_codec
from engine.cache.contract import Scattered, StoredPart
from engine.cache.paged.table import PageTable
from engine.device import new_buffer, to_device
from engine.spec.codec import Coding
from engine.wire.pages import NULL_PAGE_ID

# ---- slots and positions of the rows of one sequence ----------------------------------------------------------------


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


# ---- rows in the slots of a pool ------------------------------------------------------------------------------------


Slots = slice | torch.Tensor
Reads = Slots | HeldPages


class PageRows:
    """K or V of one layer in slots `[H_kv, pages * page_size, …]`: one buffer for the numbers or their codes, others
    for each row's scales."""

    def __init__(
        self, coding: Coding, heads: int, num_slots: int, dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Allocate without initialising; see `clear`."""
        self.coding, self.dtype, self._is_exact = coding, dtype, coding.is_exact
        self._codec = row_codec(coding)
        one_row = self._codec.encode(torch.zeros(1, heads, 1, dim, dtype=dtype, device=device))
        self._buffers = [new_buffer(part, (heads, num_slots, *part.shape[3:])) for part in one_row]
        self.row_bytes = sum(int(part.nbytes) for part in one_row)
        self.scale_bytes = self.row_bytes - int(one_row[0].nbytes)
        self.num_heads, self.width = heads, dim
        self.exact_row_bytes = heads * dim * dtype.itemsize

    @property
    def device(self) -> torch.device:
        return self._buffers[0].device

    @property
    def reserved_bytes(self) -> int:
        return sum(int(buffer.untyped_storage().nbytes()) for buffer in self._buffers)

    @property
    def exact(self) -> torch.Tensor | None:
        """The buffer `[H_kv, slots, D]` itself if rows are stored exactly, else None."""
        return self._buffers[0] if self.coding.is_exact else None

    def write(self, slots: Slots, rows: torch.Tensor) -> None:
        """Store rows `[H_kv, N, D]` in slots `[N]`."""
        codes = (rows,) if self._is_exact else tuple(part[0] for part in self._codec.encode(rows[None]))
        for buffer, part in zip(self._buffers, codes, strict=True):
            if isinstance(slots, slice):
                buffer.narrow(1, slots.start, slots.stop - slots.start).copy_(part)
            else:
                buffer[:, slots] = part

    def write_heads(self, heads: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Store rows `[N, T, D]` of heads `[N]` in slots `[N, T]`; those of other heads are unchanged."""
        made = rows.new_zeros(1, self.num_heads, *rows.shape[1:])
        made[0, heads] = rows
        for buffer, part in zip(self._buffers, self._codec.encode(made.to(self.dtype)), strict=True):
            write_slots(buffer, heads, slots, part[0, heads])

    def read(self, slots: Reads, room: GatherBuffer | None = None) -> torch.Tensor:
        """Rows `[H_kv, N, D]` as attention reads them. A view where they are exact and consecutive; exact ones that are
        not are gathered into `room`, if given."""
        if not self._is_exact:
            return self._codec.decode(tuple(part[None] for part in self.codes(slots)), self.dtype)[0]
        if isinstance(slots, slice):  # the usual case, for every layer at every step
            return self._buffers[0].narrow(1, slots.start, slots.stop - slots.start)
        return self.codes(slots, room)[0]

    def codes(self, slots: Reads, room: GatherBuffer | None = None) -> list[torch.Tensor]:
        """The stored tensors of these rows, each `[H_kv, N, …]`. With `room`, which holds one tensor, only for rows
        that are stored exactly."""
        if isinstance(slots, HeldPages):
            return [gathered(buffer, slots, room) for buffer in self._buffers]
        if isinstance(slots, slice):
            return [buffer[:, slots] for buffer in self._buffers]
        return [buffer.index_select(1, slots) for buffer in self._buffers]  # takes half the time of indexing

    def restore(self, slots: Slots, codes: list[torch.Tensor]) -> None:
        """Write what `codes` returned into slots."""
        for buffer, part in zip(self._buffers, codes, strict=True):
            buffer[:, slots] = part

    def written(self, slots: Slots) -> StoredPart:
        """The stored tensors of these rows as they go to a file, or to another cache."""
        parts: list[torch.Tensor | Scattered] = (
            [buffer[None, :, slots] for buffer in self._buffers]
            if isinstance(slots, slice)
            else [Scattered(buffer, slots, tuple(range(self.num_heads))) for buffer in self._buffers]
        )
        if self.coding.is_exact:
            return StoredPart({"rows": parts[0]})
        count = parts[0].shape[2]
        return StoredPart(dict(zip(self._codec.names, parts, strict=True)), self.coding.name, count, 0)

    def refill(self, slots: Slots, part: StoredPart) -> None:
        """Write what `written` returned into slots."""
        tensors = part.tensors
        self.restore(slots, [tensors[name][0] for name in ("rows", "codes", "scales") if name in tensors])

    def copy_from(self, other: PageRows, source: int, target: int, count: int) -> None:
        """Copy `count` slots of `other` (possibly itself) from slot `source` on to slot `target` on, across devices if
        need be."""
        for mine, theirs in zip(self._buffers, other._buffers, strict=True):
            mine[:, target : target + count].copy_(theirs[:, source : source + count])

    @torch.inference_mode()
    def clear(self, slots: Slots) -> None:
        """Set rows to zero, scales included."""
        for buffer in self._buffers:
            buffer[:, slots] = 0


class GatherBuffer:
    """A buffer that rows are gathered into, enlarged as needed; each use overwrites the one before. Reused memory is in
    the processor's caches, and needs no new pages from the operating system."""

    def __init__(self) -> None:
        self._rows = torch.empty(0)

    def view(self, like: torch.Tensor, *shape: int) -> torch.Tensor:
        """The buffer as a tensor of that shape, with the dtype and device of `like`."""
        count = math.prod(shape)
        if (self._rows.dtype, self._rows.device) != (like.dtype, like.device) or len(self._rows) < count:
            self._rows = new_buffer(like, (count,))
        return self._rows[:count].view(shape)


def gathered(buffer: torch.Tensor, held: HeldPages, room: GatherBuffer | None) -> torch.Tensor:
    """Rows `[H, count, …]` from a buffer of slots `[H, pages * page_size, …]`, copied page by page."""
    by_page = buffer.view(len(buffer), -1, held.page_size, *buffer.shape[2:])
    into = None if room is None else room.view(buffer, len(buffer), len(held.pages), *by_page.shape[2:])
    rows = torch.index_select(by_page, 1, held.pages, out=into)
    return rows.flatten(1, 2).narrow(1, held.offset, held.count)


# ---- what one forward of some sequences writes and reads ------------------------------------------------------------


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
    def writes(self) -> Slots:
        """Slots `[B * T]` of the new rows: a slice if those of one sequence are consecutive, else a tensor."""
        is_one = len(self.tables) == 1
        stops = ((table, table.num_tokens) for table in self.tables)
        found = [held_slots(t, n - self.num_new, n, self.device, as_tensor=not is_one) for t, n in stops]
        return found[0] if is_one else torch.cat(found)

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


# ---- which pages the queries read, for a kernel that reads pages in place (a flex attention block mask) -------------


QUERIES = 128  # queries in a block; the queries of a block share one list of pages


@dataclass(frozen=True, eq=False)
class PageBlocks:
    """The pages that each block of queries reads.

    `places` `[B, T]`: positions of the queries, -1 for padding. `numbers` `[B, pages]`: which page of its sequence a
    page of the pool is, -1 if it is no page of that sequence. `partly` and `wholly`: for each block of `QUERIES`
    queries, the pages that are read in part and the pages that are read completely, as a count `[B, 1, Q]` and a list
    of page ids `[B, 1, Q, pages]`, in which entries beyond the count mean nothing. Pages are listed in the order of the
    sequence, not of the pool, so that the order of summation, and with it the result, does not depend on where in the
    pool they are.
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
