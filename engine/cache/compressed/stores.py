"""K or V of one layer in a compressed cache: which rows are quantised at once, and which wait.

A store is changed in place only by appending, cropping and edits by hand. Quantising a prompt and evicting rows make a
new store, so that several layers can change together or not at all.

Every store answers the same: `append` and `read` give what attention reads; `settled` is the store after a step, with
the exact rows that it no longer has, which `with_exact` puts back; `crop`, `num_coded`, `num_final` and `first_known`
are about earlier steps; `write` is an edit by hand; `written` and `refill` are for files. A store whose rows can be
evicted one by one has also `picked`, `with_only`, `rebuilt` and `overwrite`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TypeVar

import torch

from engine.cache.by_hand import write_slots
from engine.cache.compressed import kivi
from engine.cache.compressed.codecs import RowCodec, row_codec
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


Stored = TypeVar("Stored")


def shared_copy_of(store: Stored) -> Stored:
    """A copy of a store that shares its storage but has its own counts: cropping or reading the copy leaves the
    original unchanged."""
    made = copy.copy(store)
    for name, value in vars(store).items():
        if isinstance(value, RowBuffer):
            setattr(made, name, copy.copy(value))
        elif isinstance(value, list) and value and isinstance(value[0], RowBuffer):
            setattr(made, name, [copy.copy(buffer) for buffer in value])
    return made


# ---- rows of a codec that quantises each independently --------------------------------------------------------------


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


# ---- KIVI's format: quantised groups, and the latest rows exact -----------------------------------------------------


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


# ---- either ---------------------------------------------------------------------------------------------------------


Store = RowStore | KiviStore


def store_of(coding: Coding, part: Part) -> Store:
    """An empty store for K or V in this coding."""
    return KiviStore(coding, part) if coding.is_kivi else RowStore(coding, part)
