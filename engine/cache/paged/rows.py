"""K or V of one layer in pages: exact numbers, or the codes of a codec that encodes every row independently.

A page of codes can be shared like a page of exact numbers: once full it is never written again, and its numbers depend
on its own rows only. Codecs that wait for the end of a prompt, or share scales between rows, cannot be used here.
"""

from __future__ import annotations

import math

import torch

from engine.cache.by_hand import write_slots
from engine.cache.compressed.codecs import row_codec
from engine.cache.paged.slots import HeldPages
from engine.cache.stored import Scattered, StoredPart
from engine.spec.codec import Coding

Slots = slice | torch.Tensor
Reads = Slots | HeldPages


class GatherBuffer:
    """A buffer that rows are gathered into, enlarged as needed; each use overwrites the one before. Reused memory is in
    the processor's caches, and needs no new pages from the operating system."""

    def __init__(self) -> None:
        self._rows = torch.empty(0)

    def view(self, like: torch.Tensor, *shape: int) -> torch.Tensor:
        """The buffer as a tensor of that shape, with the dtype and device of `like`."""
        count = math.prod(shape)
        if (self._rows.dtype, self._rows.device) != (like.dtype, like.device) or len(self._rows) < count:
            self._rows = like.new_empty(count)
        return self._rows[:count].view(shape)


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
        self._buffers = [part.new_empty(heads, num_slots, *part.shape[3:]) for part in one_row]
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
        codes = (rows,) if self.coding.is_exact else tuple(part[0] for part in self._codec.encode(rows[None]))
        for buffer, part in zip(self._buffers, codes, strict=True):
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
            return self._buffers[0][:, slots]
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
        return StoredPart(dict(zip(("codes", "scales"), parts, strict=True)), self.coding.name, count, 0)

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


def gathered(buffer: torch.Tensor, held: HeldPages, room: GatherBuffer | None) -> torch.Tensor:
    """Rows `[H, count, …]` from a buffer of slots `[H, pages * page_size, …]`, copied page by page."""
    by_page = buffer.view(len(buffer), -1, held.page_size, *buffer.shape[2:])
    into = None if room is None else room.view(buffer, len(buffer), len(held.pages), *by_page.shape[2:])
    rows = torch.index_select(by_page, 1, held.pages, out=into)
    return rows.flatten(1, 2).narrow(1, held.offset, held.count)
