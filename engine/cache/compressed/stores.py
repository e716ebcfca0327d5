"""K or V of one layer in a compressed cache: which rows are quantised at once, and which wait.

A store is changed in place only by appending, cropping and edits by hand. Quantising a prompt and evicting rows make a
new store, so that several layers can change together or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.cache.by_hand import write_slots
from engine.cache.compressed.codecs import RowCodec, row_codec
from engine.cache.compressed.kivi_store import KiviStore
from engine.cache.compressed.rows import RowBuffer
from engine.cache.row_delta import NO_ROWS
from engine.cache.stored import StoredPart
from engine.spec.codec import CodedBytes, Coding, Part


class RowStore:
    """Rows of a codec that quantises them independently. With a codec whose scale is fixed from the prompt, they stay
    exact until the prompt ends (`settled`)."""

    def __init__(self, coding: Coding, part: Part) -> None:
        self.coding, self.part = coding, part
        self._codec: RowCodec = row_codec(coding)
        self._codes: list[RowBuffer] = []
        self._waiting = RowBuffer() if coding.waits_for_prompt else None
        self.quantised_at = 0
        self._dtype = torch.float32
        self.row_bytes = 0  # of one row of all heads as attention reads it
        self.rewritten = NO_ROWS  # slots that the current step has overwritten

    @property
    def length(self) -> int:
        if self._waiting is not None:
            return self._waiting.length
        return self._codes[0].length if self._codes else 0

    def append(self, rows: torch.Tensor) -> torch.Tensor:
        """Append rows `[B, H, T, D]`; returns what attention reads, `[B, H, S + T, D]`."""
        self._dtype, self.row_bytes = rows.dtype, int(rows[:, :, :1].nbytes)
        if self._waiting is not None:
            self._waiting.append(rows)
            return self._waiting.view
        codes = self._codec.encode(rows)
        if not self._codes:
            self._codes = [RowBuffer() for _ in codes]
        for buffer, code in zip(self._codes, codes, strict=True):
            buffer.reserve(code, code.shape[2])
        for buffer, code in zip(self._codes, codes, strict=True):
            buffer.append(code)
        return self.read()

    def read(self, first: int = 0) -> torch.Tensor:
        """Rows from slot `first` on, as attention reads them; a view where they are exact."""
        if self._waiting is not None:
            return self._waiting.view[:, :, first:]
        return self._codec.decode(tuple(buffer.view[:, :, first:] for buffer in self._codes), self._dtype)

    @property
    def is_settled(self) -> bool:
        """Whether `settled` would change nothing."""
        return self._waiting is None or self._waiting.is_empty

    def settled(self) -> tuple[RowStore, list[torch.Tensor]]:
        """The store at the end of the prompt, when the rows that waited for it are quantised; and their exact numbers,
        which it no longer has."""
        if self._waiting is None or self._waiting.is_empty:
            return self, []
        rows = self._waiting.view
        made = self._like()
        made._codec = self._codec.freeze(rows)
        made._codes = [RowBuffer.of_appended(code) for code in made._codec.encode(rows)]
        made._waiting, made.quantised_at = None, rows.shape[2]
        made.rewritten = range(rows.shape[2])
        return made, [rows]

    def with_exact(self, lost: list[torch.Tensor]) -> RowStore:
        """The store before the end of the prompt, with the exact numbers that this one lost then."""
        made = self._like()
        made._waiting = RowBuffer.of_appended(lost[0])
        return made

    def num_final(self, num_rows: int) -> int:
        """How many of the first `num_rows` rows no later step will overwrite."""
        return 0 if self._waiting is not None else min(self.length, num_rows)

    @property
    def first_known(self) -> int:
        """The fewest rows that the store can go back to without rows of the log."""
        return self.quantised_at

    def num_coded(self, num_rows: int) -> int:
        """How many of the first `num_rows` rows are read from codes: all of them or none."""
        return 0 if self.coding.is_exact or self._waiting is not None else num_rows

    def crop(self, num_rows: int) -> None:
        self.rewritten = NO_ROWS
        for buffer in (self._waiting, *self._codes):
            if buffer is not None:
                buffer.crop(num_rows)

    def with_only(self, slots: torch.Tensor) -> RowStore:
        """A store with only the rows in slots `[H, K]`, which may differ between heads."""
        made = self._like()
        made._codec, made._waiting, made.quantised_at = self._codec, None, self.quantised_at
        made._codes = [RowBuffer.tight(buffer.picked(slots)) for buffer in self._codes]
        made.rewritten = self.rewritten
        return made

    def picked(self, slots: torch.Tensor) -> list[torch.Tensor]:
        """The stored tensors of the rows in slots `[H, E]`, for the log of lost rows."""
        return [buffer.picked(slots) for buffer in self._codes]

    def rebuilt(self, num_rows: int, evicted: list[Sequence[torch.Tensor]], slots: torch.Tensor) -> RowStore:
        """A store with the rows in `slots` `[H, K]`, which count the first `num_rows` rows of this store and after them
        the `evicted` ones."""
        made = self._like()
        made._codec, made._waiting, made.quantised_at = self._codec, None, self.quantised_at
        heads = torch.arange(slots.shape[0], device=slots.device)[:, None]
        for number, buffer in enumerate(self._codes):
            joined = torch.cat([buffer.view[:, :, :num_rows], *(codes[number] for codes in evicted)], 2)
            made._codes.append(RowBuffer.tight(joined[0][heads, slots][None]))
        return made

    def overwrite(self, first: int, rows: torch.Tensor) -> None:
        """Replace exact rows from slot `first` on, for keys that are rotated again."""
        self._codes[0].view[:, :, first : first + rows.shape[2]] = rows
        self.rewritten = range(first, first + rows.shape[2])

    def write(self, heads: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Overwrite the rows in slots `[N, T]` of heads `[N]` with rows `[N, T, D]`, encoded by the store's codec."""
        if self._waiting is not None:
            write_slots(self._waiting.view[0], heads, slots, rows)
            return
        made = rows.new_zeros(1, self._codes[0].view.shape[1], *rows.shape[1:])
        made[0, heads] = rows
        for buffer, code in zip(self._codes, self._codec.encode(made), strict=True):
            write_slots(buffer.view[0], heads, slots, code[0, heads])

    def _like(self) -> RowStore:
        made = RowStore(self.coding, self.part)
        made._dtype, made.row_bytes = self._dtype, self.row_bytes
        return made

    @property
    def stored(self) -> CodedBytes:
        if self._waiting is not None:
            return CodedBytes(exact=self._waiting.stored_bytes)
        if self.coding.is_exact:
            return CodedBytes(exact=sum(buffer.stored_bytes for buffer in self._codes))
        codes, *scales = (buffer.stored_bytes for buffer in self._codes) if self._codes else (0,)
        return CodedBytes(codes, sum(scales) + self._shared_bytes)

    @property
    def reserved_bytes(self) -> int:
        buffers = [self._waiting] if self._waiting is not None else self._codes
        return sum(buffer.reserved_bytes for buffer in buffers) + self._shared_bytes

    @property
    def _shared_bytes(self) -> int:
        return 0 if self._codec.shared is None else int(self._codec.shared.nbytes)

    spare_bytes = 0

    # ---- storing and restoring -----------------------------------------------------------------------------------

    def written(self) -> StoredPart:
        """The stored tensors of all rows."""
        if self._waiting is not None:
            return StoredPart({"rows": self._waiting.view}, self.coding.name)
        views = [buffer.view for buffer in self._codes]
        if self.coding.is_exact:
            return StoredPart({"rows": views[0]})
        tensors = dict(zip(("codes", "scales"), views, strict=False))
        if self._codec.shared is not None:
            tensors["scale"] = self._codec.shared
        return StoredPart(tensors, self.coding.name, self.length, self.quantised_at)

    def refill(self, part: StoredPart, dtype: torch.dtype) -> None:
        """Fill this store with what `written` returned for another one of the same coding."""
        tensors = part.tensors
        if self._waiting is not None and part.num_coded == 0:
            self.append(tensors["rows"])
            return
        codes = [tensors[name] for name in ("rows", "codes", "scales") if name in tensors]
        self._codec = row_codec(self.coding, tensors.get("scale"))
        self._codes = [RowBuffer.of_appended(code) for code in codes]
        self._waiting, self.quantised_at, self._dtype = None, part.quantised_at or 0, dtype
        self.row_bytes = int(self.read()[:, :, :1].nbytes)


Store = RowStore | KiviStore


def store_of(coding: Coding, part: Part) -> Store:
    """An empty store for K or V in this coding."""
    return KiviStore(coding, part) if coding.is_kivi else RowStore(coding, part)
