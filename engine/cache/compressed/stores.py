"""K or V of one layer in a compressed cache: which rows are quantised at once, and which wait.

A store is changed in place only by appending, cropping and edits by hand. Quantising a prompt and evicting rows make a
new store, so that several layers can change together or not at all.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from engine.cache.by_hand import write_slots
from engine.cache.compressed.codecs import RowCodec, row_codec
from engine.cache.compressed.kivi import Kivi, grouped
from engine.cache.contract import NO_ROWS, StoredPart, hull
from engine.device import new_buffer
from engine.predict.capacity import grown_capacity, tight_capacity
from engine.spec.codec import CodedBytes, Coding, Part

# ---- growing buffers along the token axis ---------------------------------------------------------------------------


class RowBuffer:
    """Rows `[B, H, S, …]` in a buffer with spare capacity along S: appending copies the new rows and, while there is
    room, nothing else."""

    def __init__(self) -> None:
        self._data: torch.Tensor | None = None
        self.length = 0

    @property
    def is_empty(self) -> bool:
        return self._data is None or self.length == 0

    @property
    def view(self) -> torch.Tensor:
        """The rows held, `[B, H, S, …]`."""
        assert self._data is not None, "no row was ever written"
        return self._data[:, :, : self.length]

    @property
    def stored_bytes(self) -> int:
        return 0 if self._data is None else self.length * self.reserved_bytes // self._data.shape[2]

    @property
    def reserved_bytes(self) -> int:
        return 0 if self._data is None else int(self._data.nbytes)

    def reserve(self, like: torch.Tensor, num_new: int) -> None:
        """Make room for `num_new` more rows shaped like `like`; a failed allocation changes nothing."""
        needed = self.length + num_new
        if self._data is None:
            self._make(like, grown_capacity(needed))
        elif needed > self._data.shape[2]:
            old = self.view
            self._make(like, grown_capacity(needed))
            self.view[:] = old

    def _make(self, like: torch.Tensor, capacity: int) -> None:
        self._data = new_buffer(like, (*like.shape[:2], capacity, *like.shape[3:]))

    def append(self, rows: torch.Tensor) -> None:
        self.reserve(rows, rows.shape[2])
        assert self._data is not None
        self._data[:, :, self.length : self.length + rows.shape[2]] = rows
        self.length += rows.shape[2]

    def crop(self, num_rows: int) -> None:
        """Keep the first `num_rows`; the capacity stays."""
        self.length = min(self.length, num_rows)

    def without_first(self, num_rows: int) -> RowBuffer:
        """A new buffer with all rows but the first `num_rows`."""
        made = RowBuffer()
        if self._data is not None:
            made.append(self.view[:, :, num_rows:])
        return made

    def picked(self, slots: torch.Tensor) -> torch.Tensor:
        """The rows in slots `[H, K]`, which may differ between heads: `[1, H, K, …]`."""
        heads = torch.arange(slots.shape[0], device=slots.device)[:, None]
        return self.view[0][heads, slots][None]

    @classmethod
    def of_appended(cls, rows: torch.Tensor) -> RowBuffer:
        """A buffer with these rows and the capacity that appending them gives."""
        made = cls()
        made.append(rows)
        return made

    @classmethod
    def tight(cls, rows: torch.Tensor) -> RowBuffer:
        """A buffer with these rows and little spare capacity."""
        made = cls()
        made._make(rows, tight_capacity(rows.shape[2]))
        made.append(rows)
        return made


# ---- rows in codes, and behind them exact ones -----------------------------------------------------------------------


SPARE_ROWS = 128  # quantised rows whose exact numbers stay in the buffer, which is cut only once in so many steps


class RowStore:
    """The rows of K or V: first those in codes, behind them exact ones.

    Most codecs code each row as it is appended. One whose scale is fixed from the prompt begins when that ends
    (`settled`), and has coded all of it then. KIVI begins then too; from there on keys are quantised a whole residual
    at a time and values one by one, always after the attention that still read them exactly. Exact numbers of quantised
    rows go to the log of lost rows; up to `SPARE_ROWS` that are still in the buffer are not counted as part of the
    cache.
    """

    def __init__(self, coding: Coding, part: Part) -> None:
        self.coding, self.part = coding, part
        self._codec = self._new_codec()
        self._codes: list[RowBuffer] = []  # the tensors of the codec, of the first `_coded` rows
        self._coded = 0
        self._exact, self._exact_first = RowBuffer(), 0  # exact numbers of the rows from this one on
        self.quantised_at = None if coding.waits_for_prompt else 0  # number of rows when the first were quantised
        self._dtype = torch.float32
        self.row_bytes = 0  # of one row of all heads as attention reads it
        self.rewritten = NO_ROWS  # slots that the current step has overwritten

    def _new_codec(self, shared: torch.Tensor | None = None) -> RowCodec:
        coding = self.coding
        return Kivi(coding.bits or 0, coding.group_size, self.part) if coding.is_kivi else row_codec(coding, shared)

    def shared_copy(self) -> RowStore:
        """A copy that shares the storage but has its own counts: cropping or reading the copy leaves this store
        unchanged."""
        made = copy.copy(self)
        made._exact, made._codes = copy.copy(self._exact), [copy.copy(buffer) for buffer in self._codes]
        return made

    # ---- what attention reads ------------------------------------------------------------------------------------

    @property
    def length(self) -> int:
        return self._exact_first + self._exact.length

    def append(self, rows: torch.Tensor) -> torch.Tensor:
        """Append rows `[B, H, T, D]`; returns what attention reads, `[B, H, S + T, D]`: with KIVI the new
        rows exactly."""
        self._dtype, self.row_bytes = rows.dtype, int(rows[:, :, :1].nbytes)
        coding = self.coding
        if coding.is_exact or coding.is_kivi or self.quantised_at is None:
            self._exact.append(rows)
            read = self.read()
            self._code_up_to(self.num_coded(self.length))
            return read
        self._encode(rows)
        self._exact_first = self._coded = self._coded + rows.shape[2]
        return self.read()

    def read(self, first: int = 0) -> torch.Tensor:
        """Rows from slot `first` on, as attention reads them; a view where they are exact."""
        if self._exact.is_empty:
            return self._decoded(first)
        exact = self._exact.view[:, :, max(self._coded, first) - self._exact_first :]
        return exact if first >= self._coded else torch.cat([self._decoded(first), exact], 2)

    def _decoded(self, first: int = 0) -> torch.Tensor:
        """The quantised rows from row `first` on; of earlier ones only those in its group are decoded."""
        start = first // self._codec.group * self._codec.group
        bounds = zip(self._codec.counts(start), self._codec.counts(self._coded), strict=True)
        codes = tuple(each.view[:, :, m:n] for each, (m, n) in zip(self._codes, bounds, strict=False))
        return self._codec.decode(codes, self._dtype)[:, :, first - start :]

    def _code_up_to(self, target: int) -> None:
        if target > self._coded:
            self._encode(self._exact.view[:, :, self._coded - self._exact_first : target - self._exact_first])
            self.rewritten = hull(self.rewritten, range(self._coded, target))
            self._coded = target

    def _encode(self, rows: torch.Tensor) -> None:
        codes = self._codec.encode(rows)
        self._codes = self._codes or [RowBuffer() for _ in codes]
        for buffer, code in zip(self._codes, codes, strict=True):
            buffer.reserve(code, code.shape[2])
        for buffer, code in zip(self._codes, codes, strict=True):
            buffer.append(code)

    def write(self, heads: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Overwrite the rows in slots `[N, T]` of heads `[N]` with rows `[N, T, D]`, as the codec encodes them. KIVI
        quantises a group in which a number has changed again from its dequantised numbers, and every other group keeps
        its bits; there the slots are the same in every head."""
        if self.coding.is_kivi:
            is_exact = slots[0] >= self._coded
            if bool(is_exact.any()):
                write_slots(self._exact.view[0], heads, slots[:, is_exact] - self._exact_first, rows[:, is_exact])
            if bool((~is_exact).any()):
                self._write_groups(heads, slots[:, ~is_exact], rows[:, ~is_exact])
        elif self._coded:
            made = rows.new_zeros(1, self._codes[0].view.shape[1], *rows.shape[1:])
            made[0, heads] = rows
            for buffer, code in zip(self._codes, self._codec.encode(made), strict=True):
                write_slots(buffer.view[0], heads, slots, code[0, heads])
        else:
            write_slots(self._exact.view[0], heads, slots, rows)

    def _write_groups(self, heads: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
        axis = 2 if self.part == "keys" else 3
        old = self._decoded()
        new = old.clone()
        write_slots(new[0], heads, slots, rows)
        is_other = grouped(new != old, axis, self._codec.group).any(axis + 1)  # of each group that shares a scale
        counts = self._codec.counts(self._coded)
        for buffer, part, count in zip(self._codes, self._codec.encode(new), counts, strict=True):
            is_recoded = is_other.repeat_interleave(part.shape[axis] // is_other.shape[axis], axis)
            kept = buffer.view[:, :, :count]
            kept.copy_(torch.where(is_recoded, part, kept))

    # ---- the end of a step, and earlier steps --------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether `settled` would change nothing."""
        is_coded = self.quantised_at is not None and self._coded - self._exact_first < SPARE_ROWS
        return is_coded or self._exact.is_empty

    def settled(self) -> tuple[RowStore, list[torch.Tensor]]:
        """The store after a step, from the end of the prompt on, when the rows that waited for it, or leave the
        residual, are quantised; and exact numbers of quantised rows that it no longer has."""
        if self.is_settled:
            return self, []
        made = self.shared_copy()
        if self.quantised_at is None:
            made.quantised_at, made._codec = self.length, self._codec.freeze(self._exact.view)
            made._code_up_to(made.num_coded(self.length))
        num_lost = made._coded - made._exact_first
        made._exact = RowBuffer() if self.coding.is_frozen else self._exact.without_first(num_lost)
        made._exact_first = made._coded
        return made, [self._exact.view[:, :, :num_lost]] if num_lost else []

    def with_exact(self, lost: list[torch.Tensor]) -> RowStore:
        """A store with exact numbers that this one lost, oldest first: of a codec whose scale is fixed the store before
        that, else in front of those that it has."""
        if self.coding.is_frozen:
            made = RowStore(self.coding, self.part)
            made.append(lost[0])
            return made
        made = self.shared_copy()
        made._exact = RowBuffer.of_appended(torch.cat([*lost, self._exact.view], 2))
        made._exact_first -= sum(rows.shape[2] for rows in lost)
        return made

    def num_coded(self, num_rows: int) -> int:
        """How many of the first `num_rows` rows are read from codes; none before any was quantised."""
        return 0 if self.quantised_at is None else self.coding.num_coded(num_rows, self.part)

    def num_final(self, num_rows: int) -> int:
        """How many of the first `num_rows` rows no later step will overwrite: those that were quantised when there were
        no more, or all where none will be."""
        if self.coding.is_exact:
            return min(self.length, num_rows)
        return min(self._coded, self.coding.num_coded(num_rows, self.part))

    @property
    def first_known(self) -> int:
        """The fewest rows that the store, just filled, can go back to without rows of the log."""
        return self.length if self.coding.is_kivi and self._coded else self.quantised_at or 0

    def crop(self, num_rows: int) -> None:
        """Go back to the first `num_rows` rows; the exact numbers of those that were exact then are in the buffer."""
        self.rewritten = NO_ROWS
        if self.coding.is_kivi and num_rows < (self.quantised_at or 0):
            self.quantised_at = None
        self._coded = min(self._coded, self.num_coded(num_rows))
        for buffer, count in zip(self._codes, self._codec.counts(self._coded), strict=False):
            buffer.crop(count)
        self._exact.crop(max(0, num_rows - self._exact_first))
        if self._exact.is_empty:
            self._exact_first = self._coded

    # ---- rows evicted one by one, which KIVI's groups do not allow -----------------------------------------------

    @property
    def _held(self) -> list[RowBuffer]:
        return [self._exact] if self.coding.is_exact else self._codes

    def _holding(self, held: list[RowBuffer]) -> RowStore:
        made = copy.copy(self)
        if self.coding.is_exact:
            (made._exact,) = held
        else:
            made._codes, made._coded, made._exact_first = held, held[0].length, held[0].length
        return made

    def with_only(self, slots: torch.Tensor) -> RowStore:
        """A store with only the rows in slots `[H, K]`, which may differ between heads."""
        return self._holding([RowBuffer.tight(buffer.picked(slots)) for buffer in self._held])

    def picked(self, slots: torch.Tensor) -> list[torch.Tensor]:
        """The stored tensors of the rows in slots `[H, E]`, for the log of lost rows."""
        return [buffer.picked(slots) for buffer in self._held]

    def rebuilt(self, num_rows: int, evicted: list[Sequence[torch.Tensor]], slots: torch.Tensor) -> RowStore:
        """A store with the rows in `slots` `[H, K]`, which count the first `num_rows` rows of this store and after them
        the `evicted` ones."""
        heads = torch.arange(slots.shape[0], device=slots.device)[:, None]
        joined = (
            torch.cat([buffer.view[:, :, :num_rows], *(codes[number] for codes in evicted)], 2)
            for number, buffer in enumerate(self._held)
        )
        made = self._holding([RowBuffer.tight(rows[0][heads, slots][None]) for rows in joined])
        made.rewritten = NO_ROWS
        return made

    def overwrite(self, first: int, rows: torch.Tensor) -> None:
        """Replace exact rows from slot `first` on, for keys that are rotated again."""
        self._exact.view[:, :, first : first + rows.shape[2]] = rows
        self.rewritten = range(first, first + rows.shape[2])

    # ---- bytes ---------------------------------------------------------------------------------------------------

    @property
    def stored(self) -> CodedBytes:
        codes, *scales = (buffer.stored_bytes for buffer in self._codes) if self._codes else (0,)
        num_kept = self._coded - self._exact_first
        behind = self._exact.stored_bytes * num_kept // self._exact.length if num_kept else 0
        return CodedBytes(codes, sum(scales) + self._shared_bytes, self._exact.stored_bytes - behind)

    @property
    def _shared_bytes(self) -> int:
        return 0 if self._codec.shared is None else int(self._codec.shared.nbytes)

    @property
    def spare_bytes(self) -> int:
        """Bytes of the exact numbers of quantised rows, and of the capacity that the buffer has because of them."""
        return self._exact.reserved_bytes - self._residual_room

    @property
    def reserved_bytes(self) -> int:
        return sum(buffer.reserved_bytes for buffer in self._codes) + self._shared_bytes + self._residual_room

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
        name, at = self.coding.name, None if self.coding.is_exact else self.quantised_at
        if not self._coded:
            return StoredPart({"rows": self._exact.view}, name, 0, at)
        counts = self._codec.counts(self._coded)
        codes = (buffer.view[:, :, :n] for buffer, n in zip(self._codes, counts, strict=False))
        tensors = dict(zip(self._codec.names, codes, strict=False))
        if self._codec.shared is not None:
            tensors["scale"] = self._codec.shared
        if self.coding.is_kivi:
            tensors["exact"] = self._exact.view[:, :, self._coded - self._exact_first :]
        return StoredPart(tensors, name, self._coded, at)

    def refill(self, part: StoredPart, dtype: torch.dtype) -> None:
        """Fill this store with what `written` returned for another one of the same coding."""
        tensors = part.tensors
        self._dtype, self._codec = dtype, self._new_codec(tensors.get("scale"))
        self._codes = [RowBuffer.of_appended(tensors[name]) for name in self._codec.names if name in tensors]
        self._coded = self._exact_first = part.num_coded
        for name in ("rows", "exact"):
            if name in tensors:
                self._exact.append(tensors[name].to(dtype))
        self.quantised_at = part.quantised_at or (0 if part.num_coded else self.quantised_at)
        self.row_bytes = int(self.read(self.length - 1).nbytes)
