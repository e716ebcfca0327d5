"""Where one tensor of one layer lives when it is coded: what is written at once, what waits, what can be taken back.

A store mutates only by appending and by cropping. Quantising a prompt and dropping rows make a new store, so that
several layers can change together or not at all.
"""

from __future__ import annotations

import torch

from engine.cache.by_hand import put
from engine.cache.compressed import kivi
from engine.cache.compressed.codecs import RowCodec, row_codec
from engine.cache.compressed.rows import RowBuffer
from engine.cache.contract import NO_ROWS, StoredPart, hull
from engine.predict.capacity import grown_capacity
from engine.spec.codec import CodedBytes, Coding, Part

JOURNAL_ROWS = 1024  # exact rows kept behind a KIVI residual, so that steps can be taken back


class RowStore:
    """Rows written one by one. With a frozen scale they stay exact until the prompt ends (`quantised`)."""

    def __init__(self, coding: Coding, part: Part) -> None:
        self.coding, self.part = coding, part
        self._codec: RowCodec = row_codec(coding)
        self._codes: list[RowBuffer] = []
        self._waiting = RowBuffer() if coding.waits_for_prompt else None
        self._quantised_at = 0
        self._dtype = torch.float32
        self.row_bytes = 0  # of one row of all heads as attention reads it
        self.rewritten = NO_ROWS  # slots that the step in progress has written anew

    @property
    def length(self) -> int:
        if self._waiting is not None:
            return self._waiting.length
        return self._codes[0].length if self._codes else 0

    def append(self, rows: torch.Tensor) -> torch.Tensor:
        """Keep rows `[B, H, T, D]`; returns what attention reads, `[B, H, S + T, D]`."""
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

    def quantised(self) -> RowStore:
        """The store once the prompt has ended; itself where nothing waits."""
        if self._waiting is None or self._waiting.is_empty:
            return self
        rows = self._waiting.view
        made = self._like()
        made._codec = self._codec.freeze(rows)
        made._codes = [RowBuffer.doubling(code) for code in made._codec.encode(rows)]
        made._waiting, made._quantised_at = None, rows.shape[2]
        made.rewritten = range(rows.shape[2])
        return made

    @property
    def num_final(self) -> int:
        """Rows that are never written anew."""
        return 0 if self._waiting is not None else self.length

    def can_crop(self, num_rows: int) -> bool:
        return num_rows >= self._quantised_at

    def crop(self, num_rows: int) -> None:
        self.rewritten = NO_ROWS
        for buffer in (self._waiting, *self._codes):
            if buffer is not None:
                buffer.crop(num_rows)

    def kept(self, slots: torch.Tensor) -> RowStore:
        """A store of the rows in slots `[H, K]`, each head its own."""
        made = self._like()
        made._codec, made._waiting, made._quantised_at = self._codec, None, self._quantised_at
        made._codes = [RowBuffer.of(buffer.picked(slots)) for buffer in self._codes]
        made.rewritten = self.rewritten
        return made

    def picked(self, slots: torch.Tensor) -> list[torch.Tensor]:
        """The codes of slots `[H, E]`, to be restored one day."""
        return [buffer.picked(slots) for buffer in self._codes]

    def rebuilt(self, num_rows: int, dropped: list[list[torch.Tensor]], slots: torch.Tensor) -> RowStore:
        """A store of the rows in `slots` `[H, K]`, counted over the first `num_rows` here and then those dropped."""
        made = self._like()
        made._codec, made._waiting, made._quantised_at = self._codec, None, self._quantised_at
        heads = torch.arange(slots.shape[0], device=slots.device)[:, None]
        for number, buffer in enumerate(self._codes):
            joined = torch.cat([buffer.view[:, :, :num_rows], *(codes[number] for codes in dropped)], 2)
            made._codes.append(RowBuffer.of(joined[0][heads, slots][None]))
        return made

    def overwrite(self, first: int, rows: torch.Tensor) -> None:
        """Exact rows take the place of those from slot `first` on: for keys that are rotated."""
        self._codes[0].view[:, :, first : first + rows.shape[2]] = rows
        self.rewritten = range(first, first + rows.shape[2])

    def write(self, heads: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Rows `[N, T, D]` of heads `[N]` take the place of those in slots `[N, T]`, coded as rows are."""
        if self._waiting is not None:
            put(self._waiting.view[0], heads, slots, rows)
            return
        made = rows.new_zeros(1, self._codes[0].view.shape[1], *rows.shape[1:])
        made[0, heads] = rows
        for buffer, code in zip(self._codes, self._codec.encode(made), strict=True):
            put(buffer.view[0], heads, slots, code[0, heads])

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

    journal_bytes = 0

    # ---- written and read again ----------------------------------------------------------------------------------

    def written(self) -> StoredPart:
        """The rows as they are kept."""
        if self._waiting is not None:
            return StoredPart({"rows": self._waiting.view}, self.coding.name)
        views = [buffer.view for buffer in self._codes]
        if self.coding.is_exact:
            return StoredPart({"rows": views[0]})
        tensors = dict(zip(("codes", "scales"), views, strict=False))
        if self._codec.shared is not None:
            tensors["scale"] = self._codec.shared
        return StoredPart(tensors, self.coding.name, self.length, self._quantised_at)

    def refill(self, part: StoredPart, dtype: torch.dtype) -> None:
        """Hold what `written` gave in another store of the same coding."""
        tensors = part.tensors
        if self._waiting is not None and part.num_coded == 0:
            self.append(tensors["rows"])
            return
        codes = [tensors[name] for name in ("rows", "codes", "scales") if name in tensors]
        self._codec = row_codec(self.coding, tensors.get("scale"))
        self._codes = [RowBuffer.doubling(code) for code in codes]
        self._waiting, self._quantised_at, self._dtype = None, part.quantised_at or 0, dtype
        self.row_bytes = int(self.read()[:, :, :1].nbytes)


class KiviStore:
    """KIVI's packed groups and exact residual. A prompt is coded when it ends; then keys leave the residual a whole
    residual at a time and values one by one, always after the attention that still read them exactly.

    Exact rows behind the residual are kept for going back, the latest 1,024 at least; they are no part of the cache.
    """

    def __init__(self, coding: Coding, part: Part) -> None:
        self.coding, self.part = coding, part
        self._packed = [RowBuffer() for _ in range(3)]  # words, scales, offsets
        self._exact = RowBuffer()
        self._exact_first = 0
        self._coded = 0
        self._quantised_at: int | None = None
        self.rewritten = NO_ROWS  # slots that the step in progress has written anew

    @property
    def num_final(self) -> int:
        """Rows that are never written anew."""
        return self._coded

    @property
    def length(self) -> int:
        return self._exact_first + self._exact.length

    def append(self, rows: torch.Tensor) -> torch.Tensor:
        """Keep rows `[B, H, T, D]`; returns what attention reads: coded rows, the exact residual, the new rows."""
        self._exact.append(rows)
        read = self.read()
        if self._quantised_at is not None:
            self._code_up_to(self.coding.num_coded(self.length, self.part))
        return read

    def read(self, first: int = 0) -> torch.Tensor:
        exact = self._exact.view[:, :, max(self._coded, first) - self._exact_first :]
        if first >= self._coded:
            return exact
        coded = self._decoded(exact.dtype)[:, :, first:]
        return torch.cat([coded, exact], 2)

    def _decoded(self, dtype: torch.dtype) -> torch.Tensor:
        group, bits = self.coding.group_size, self.coding.bits or 0
        counts = self._packed_counts(self._coded)
        words, scales, offsets = (b.view[:, :, :n] for b, n in zip(self._packed, counts, strict=True))
        decode = kivi.decode_keys if self.part == "keys" else kivi.decode_values
        return decode((words, scales, offsets), bits, group, dtype)

    def _packed_counts(self, coded: int) -> tuple[int, int, int]:
        """Rows of words, scales and offsets that so many coded tokens fill."""
        if self.part == "values":
            return coded, coded, coded
        groups = coded // self.coding.group_size
        return coded // self.coding.codes_per_word, groups, groups

    def _code_up_to(self, target: int) -> None:
        if target <= self._coded:
            return
        rows = self._exact.view[:, :, self._coded - self._exact_first : target - self._exact_first]
        encode = kivi.encode_keys if self.part == "keys" else kivi.encode_values
        parts = encode(rows, self.coding.bits or 0, self.coding.group_size)
        for buffer, part in zip(self._packed, parts, strict=True):
            buffer.append(part)
        self.rewritten = hull(self.rewritten, range(self._coded, target))
        self._coded = target
        if self._coded - self._exact_first > 2 * JOURNAL_ROWS:
            kept_from = self._coded - JOURNAL_ROWS
            self._exact = self._exact.without_first(kept_from - self._exact_first)
            self._exact_first = kept_from

    def write(self, heads: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Rows `[N, T, D]` of heads `[N]` take the place of those in slots `[N, T]`, the same in every head. A group
        that has a number which changed is coded again from what it stood for; every other keeps its bits."""
        places = slots[0]
        is_exact = places >= self._coded
        if bool(is_exact.any()):
            behind = places[is_exact] - self._exact_first
            put(self._exact.view[0], heads, behind.expand(len(heads), -1), rows[:, is_exact])
        if bool((~is_exact).any()):
            self._write_coded(heads, places[~is_exact], rows[:, ~is_exact])

    def _write_coded(self, heads: torch.Tensor, places: torch.Tensor, rows: torch.Tensor) -> None:
        bits, group, axis = self.coding.bits or 0, self.coding.group_size, 2 if self.part == "keys" else 3
        old = self._decoded(self._exact.view.dtype)
        new = old.clone()
        put(new[0], heads, places.expand(len(heads), -1), rows)
        is_other = kivi.grouped(new != old, axis, group).any(axis + 1)  # of each group that shares a scale
        encode = kivi.encode_keys if self.part == "keys" else kivi.encode_values
        counts = self._packed_counts(self._coded)
        for buffer, part, count in zip(self._packed, encode(new, bits, group), counts, strict=True):
            is_recoded = is_other.repeat_interleave(part.shape[axis] // is_other.shape[axis], axis)
            kept = buffer.view[:, :, :count]
            kept.copy_(torch.where(is_recoded, part, kept))

    def quantised(self) -> KiviStore:
        """The store once the prompt has ended: what leaves the residual is coded, and its exact rows are let go."""
        if self._quantised_at is not None or self._exact.is_empty:
            return self
        made = KiviStore(self.coding, self.part)
        made._exact, made._quantised_at = self._exact, self.length
        made._code_up_to(self.coding.num_coded(self.length, self.part))
        made._exact = self._exact.without_first(made._coded)
        made._exact_first = made._coded
        return made

    def can_crop(self, num_rows: int) -> bool:
        if self._quantised_at is None:
            return True
        return num_rows >= self._quantised_at and self.coding.num_coded(num_rows, self.part) >= self._exact_first

    def crop(self, num_rows: int) -> None:
        """Back to the first rows: those that were still exact then are taken from the rows kept for going back."""
        self.rewritten = NO_ROWS
        if self._quantised_at is not None:
            self._coded = min(self._coded, self.coding.num_coded(num_rows, self.part))
        for buffer, count in zip(self._packed, self._packed_counts(self._coded), strict=True):
            buffer.crop(count)
        self._exact.crop(num_rows - self._exact_first)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of all heads as attention reads it."""
        return self._exact.stored_bytes // self._exact.length if self._exact.length else 0

    @property
    def stored(self) -> CodedBytes:
        words, scales, offsets = (buffer.stored_bytes for buffer in self._packed)
        num_kept = self._coded - self._exact_first
        behind = self._exact.stored_bytes * num_kept // self._exact.length if num_kept else 0
        return CodedBytes(words, scales + offsets, self._exact.stored_bytes - behind)

    @property
    def journal_bytes(self) -> int:
        """Exact rows behind the residual, kept for going back, and the room that the buffer has because of them."""
        return self._exact.reserved_bytes - self._residual_room

    @property
    def reserved_bytes(self) -> int:
        packed = sum(buffer.reserved_bytes for buffer in self._packed)
        return packed + self._residual_room

    @property
    def _residual_room(self) -> int:
        """Bytes of the buffer that the exact rows would have if none were kept for going back."""
        length = self._exact.length
        num_exact = length - (self._coded - self._exact_first)
        if not num_exact:
            return 0
        return min(self._exact.reserved_bytes, self._exact.stored_bytes // length * grown_capacity(num_exact))

    # ---- written and read again ----------------------------------------------------------------------------------

    def written(self) -> StoredPart:
        """The rows as they are kept; those that are exact only for going back are left out."""
        exact = self._exact.view[:, :, self._coded - self._exact_first :]
        if not self._coded:
            return StoredPart({"rows": exact}, self.coding.name, 0, self._quantised_at)
        counts = self._packed_counts(self._coded)
        packed = (buffer.view[:, :, :n] for buffer, n in zip(self._packed, counts, strict=True))
        tensors = dict(zip(("words", "scales", "offsets"), packed, strict=True))
        return StoredPart({**tensors, "exact": exact}, self.coding.name, self._coded, self._quantised_at)

    def refill(self, part: StoredPart, dtype: torch.dtype) -> None:
        """Hold what `written` gave in another store of the same coding."""
        self._exact.append(part.tensors["exact" if part.num_coded else "rows"].to(dtype))
        self._exact_first = self._coded = part.num_coded
        self._quantised_at = part.quantised_at
        if part.num_coded:
            self._packed = [RowBuffer.doubling(part.tensors[name]) for name in ("words", "scales", "offsets")]


Store = RowStore | KiviStore


def store_of(coding: Coding, part: Part) -> Store:
    return KiviStore(coding, part) if coding.is_kivi else RowStore(coding, part)
