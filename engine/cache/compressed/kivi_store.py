"""K or V of one layer in KIVI's format: quantised groups, and the latest rows exact."""

from __future__ import annotations

import torch

from engine.cache.by_hand import write_slots
from engine.cache.compressed import kivi
from engine.cache.compressed.rows import RowBuffer, shared_copy_of
from engine.cache.row_delta import NO_ROWS, hull
from engine.cache.stored import StoredPart
from engine.predict.capacity import grown_capacity
from engine.spec.codec import CodedBytes, Coding, Part

SPARE_ROWS = 128  # quantised rows whose exact numbers stay in the buffer, which is cut only once in so many steps


class KiviStore:
    """KIVI's packed groups and exact residual.

    A prompt is quantised when it ends. After that, keys are quantised a whole residual at a time and values one by one,
    always after the attention that still read them exactly. Exact numbers of quantised rows go to the log of lost rows;
    up to `SPARE_ROWS` that are still in the buffer are not counted as part of the cache.
    """

    def __init__(self, coding: Coding, part: Part) -> None:
        self.coding, self.part = coding, part
        self._packed = [RowBuffer() for _ in range(3)]  # words, scales, offsets
        self._exact = RowBuffer()
        self._exact_first = 0
        self._coded = 0
        self.quantised_at: int | None = None
        self.rewritten = NO_ROWS  # slots that the current step has overwritten

    def num_final(self, num_rows: int) -> int:
        """How many of the first `num_rows` rows were quantised when there were no more: no later step overwrites
        these."""
        return min(self._coded, self.coding.num_coded(num_rows, self.part))

    @property
    def length(self) -> int:
        return self._exact_first + self._exact.length

    def append(self, rows: torch.Tensor) -> torch.Tensor:
        """Append rows `[B, H, T, D]`; returns what attention reads: dequantised rows, the exact residual, the new
        rows."""
        self._exact.append(rows)
        read = self.read()
        if self.quantised_at is not None:
            self._code_up_to(self.coding.num_coded(self.length, self.part))
        return read

    def read(self, first: int = 0) -> torch.Tensor:
        exact = self._exact.view[:, :, max(self._coded, first) - self._exact_first :]
        if first >= self._coded:
            return exact
        return torch.cat([self._decoded(exact.dtype, first), exact], 2)

    def _decoded(self, dtype: torch.dtype, first: int = 0) -> torch.Tensor:
        """The quantised rows from row `first` on; of earlier ones only those in its group are decoded."""
        group, bits = self.coding.group_size, self.coding.bits or 0
        start = first // group * group
        bounds = zip(self._packed_counts(start), self._packed_counts(self._coded), strict=True)
        words, scales, offsets = (b.view[:, :, m:n] for b, (m, n) in zip(self._packed, bounds, strict=True))
        decode = kivi.decode_keys if self.part == "keys" else kivi.decode_values
        return decode((words, scales, offsets), bits, group, dtype)[:, :, first - start :]

    def _packed_counts(self, coded: int) -> tuple[int, int, int]:
        """The number of rows of words, scales and offsets that `coded` quantised tokens take."""
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

    def write(self, heads: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Overwrite the rows in slots `[N, T]` (the same in every head) of heads `[N]` with rows `[N, T, D]`. A group
        in which a number has changed is quantised again from its dequantised numbers; every other group keeps its
        bits."""
        places = slots[0]
        is_exact = places >= self._coded
        if bool(is_exact.any()):
            behind = places[is_exact] - self._exact_first
            write_slots(self._exact.view[0], heads, behind.expand(len(heads), -1), rows[:, is_exact])
        if bool((~is_exact).any()):
            self._write_coded(heads, places[~is_exact], rows[:, ~is_exact])

    def _write_coded(self, heads: torch.Tensor, places: torch.Tensor, rows: torch.Tensor) -> None:
        bits, group, axis = self.coding.bits or 0, self.coding.group_size, 2 if self.part == "keys" else 3
        old = self._decoded(self._exact.view.dtype)
        new = old.clone()
        write_slots(new[0], heads, places.expand(len(heads), -1), rows)
        is_other = kivi.grouped(new != old, axis, group).any(axis + 1)  # of each group that shares a scale
        encode = kivi.encode_keys if self.part == "keys" else kivi.encode_values
        counts = self._packed_counts(self._coded)
        for buffer, part, count in zip(self._packed, encode(new, bits, group), counts, strict=True):
            is_recoded = is_other.repeat_interleave(part.shape[axis] // is_other.shape[axis], axis)
            kept = buffer.view[:, :, :count]
            kept.copy_(torch.where(is_recoded, part, kept))

    @property
    def is_settled(self) -> bool:
        """Whether `settled` would change nothing."""
        is_coded = self.quantised_at is not None and self._coded - self._exact_first < SPARE_ROWS
        return is_coded or self._exact.is_empty

    def settled(self) -> tuple[KiviStore, list[torch.Tensor]]:
        """The store after a step, from the end of the prompt on, when the rows that leave the residual are quantised;
        and exact numbers of quantised rows that it no longer has."""
        if self.is_settled:
            return self, []
        made = shared_copy_of(self)
        if self.quantised_at is None:
            made.quantised_at = self.length
            made._code_up_to(self.coding.num_coded(self.length, self.part))
        num_lost = made._coded - made._exact_first
        made._exact, made._exact_first = self._exact.without_first(num_lost), made._coded
        return made, [self._exact.view[:, :, :num_lost]] if num_lost else []

    def with_exact(self, lost: list[torch.Tensor]) -> KiviStore:
        """A store with exact numbers that this one lost, oldest first, in front of those that it has."""
        made = shared_copy_of(self)
        made._exact = RowBuffer.of_appended(torch.cat([*lost, self._exact.view], 2))
        made._exact_first -= sum(rows.shape[2] for rows in lost)
        return made

    @property
    def first_known(self) -> int:
        """The fewest rows that a store just filled can go back to."""
        return self.length if self._coded else self.quantised_at or 0

    def num_coded(self, num_rows: int) -> int:
        """How many of the first `num_rows` rows are read from codes; none while all are in the residual."""
        return 0 if self.quantised_at is None else self.coding.num_coded(num_rows, self.part)

    def crop(self, num_rows: int) -> None:
        """Go back to the first `num_rows` rows; the exact numbers of those that were exact then are in the buffer."""
        self.rewritten = NO_ROWS
        if self.quantised_at is not None and num_rows < self.quantised_at:
            self.quantised_at = None
        self._coded = min(self._coded, self.num_coded(num_rows))
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
    def spare_bytes(self) -> int:
        """Bytes of the exact numbers of quantised rows, and of the capacity that the buffer has because of them."""
        return self._exact.reserved_bytes - self._residual_room

    @property
    def reserved_bytes(self) -> int:
        packed = sum(buffer.reserved_bytes for buffer in self._packed)
        return packed + self._residual_room

    @property
    def _residual_room(self) -> int:
        """Bytes that the buffer of exact rows would have with the residual only. Where it has no more, all of the
        buffer, however much capacity a failed step has left."""
        length, num_kept = self._exact.length, self._coded - self._exact_first
        if not num_kept:
            return self._exact.reserved_bytes
        if num_kept == length:
            return 0
        return min(self._exact.reserved_bytes, self._exact.stored_bytes // length * grown_capacity(length - num_kept))

    # ---- storing and restoring -----------------------------------------------------------------------------------

    def written(self) -> StoredPart:
        """The stored tensors, without the exact numbers of quantised rows."""
        exact = self._exact.view[:, :, self._coded - self._exact_first :]
        if not self._coded:
            return StoredPart({"rows": exact}, self.coding.name, 0, self.quantised_at)
        counts = self._packed_counts(self._coded)
        packed = (buffer.view[:, :, :n] for buffer, n in zip(self._packed, counts, strict=True))
        tensors = dict(zip(("words", "scales", "offsets"), packed, strict=True))
        return StoredPart({**tensors, "exact": exact}, self.coding.name, self._coded, self.quantised_at)

    def refill(self, part: StoredPart, dtype: torch.dtype) -> None:
        """Fill this store with what `written` returned for another one of the same coding."""
        self._exact.append(part.tensors["exact" if part.num_coded else "rows"].to(dtype))
        self._exact_first = self._coded = part.num_coded
        self.quantised_at = part.quantised_at
        if part.num_coded:
            self._packed = [RowBuffer.of_appended(part.tensors[name]) for name in ("words", "scales", "offsets")]
