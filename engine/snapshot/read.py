"""Reads an opened snapshot: its header at once, everything else on request. No torch.

Bytes are read with `pread` and never mapped: if the file is truncated, or its drive disappears, this raises an error
and does not kill the process. Opening takes the same time for files of any size.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, get_args

import numpy as np
from msgspec import Struct
from msgspec.structs import fields

from engine.errors import InputError
from engine.files.text import open_regular
from engine.snapshot.format import (
    CODE_OF_DTYPE,
    ITEM_BYTES,
    MAX_RECORD_BYTES,
    PREFIX_BYTES,
    TRANSFORMERS_FP8,
    Array,
    Damaged,
    LayerEntry,
    Manifest,
    PartEntry,
    TensorEntry,
    coding_of,
    header_length,
    parse,
    read_manifest,
)
from engine.spec.codec import WORD_BITS, Part
from engine.wire.encoding import WireError, packed, unpacked
from engine.wire.records import SequenceStep, StepRecord

# A record is a MessagePack list of its fields, in the order given in the manifest under `record_fields`. A struct in a
# field that can hold several types begins with its name. An array is a list of the NumPy name of its dtype, its shape
# and its bytes.


def record_bytes(records: Iterable[StepRecord]) -> Iterator[bytes]:
    """Each record encoded; raises `InputError` for one that is larger than the limit for reading."""
    for record in records:
        content = packed(record)
        if len(content) > MAX_RECORD_BYTES:
            raise InputError(
                f"Step {record.step} takes {len(content):,} bytes, of at most {MAX_RECORD_BYTES:,}: leave it out."
            )
        yield content


@cache
def record_fields() -> dict[str, tuple[str, ...]]:
    """The fields of every struct in a record, by its name, in the order in which they are written."""
    found: dict[str, tuple[str, ...]] = {}
    _collect(StepRecord, found)
    return dict(sorted(found.items()))


def _collect(kind: Any, found: dict[str, tuple[str, ...]]) -> None:
    if not (isinstance(kind, type) and issubclass(kind, Struct)):
        for each in get_args(kind):
            _collect(each, found)
    elif kind.__name__ not in found:
        found[kind.__name__] = tuple(field.name for field in fields(kind))
        for field in fields(kind):
            _collect(field.type, found)


def _agree(theirs: tuple[str, ...], mine: tuple[str, ...] | None) -> bool:
    """Whether one list of fields is the beginning of the other: missing fields are read as their defaults."""
    return mine is None or all(one == other for one, other in zip(theirs, mine, strict=False))


def _check(step: SequenceStep) -> None:
    """Raise `Damaged` if lists that belong together differ in length."""
    count = len(step.token_ids)
    if not len(step.texts) == count or len(step.surprisal) not in (0, count):
        raise Damaged("its tokens, texts and surprisals are of different numbers")
    if step.first_position < 0 or step.first_position + count != step.num_tokens:
        raise Damaged("its tokens stand elsewhere than it says")
    for kind in (step.rows, step.attention):
        if kind is not None:
            num_layers = len(kind.layers)
            arrays = [value for name in kind.__struct_fields__ if isinstance(value := getattr(kind, name), np.ndarray)]
            if any(array.ndim < 2 or array.shape[0] != num_layers for array in arrays):
                raise Damaged("its statistics are of another number of layers than it names")


NUMPY_NAMES = {
    "F64": "<f8", "I64": "<i8", "U64": "<u8", "F32": "<f4", "I32": "<i4", "U32": "<u4", "F16": "<f2", "BF16": "<u2",
    "I16": "<i2", "U16": "<u2", "I8": "|i1", "U8": "|u1", "BOOL": "|u1", "F8_E4M3": "|u1", "F8_E5M2": "|u1",
}  # fmt: skip
PIECE_BYTES = 8 << 20


class SnapshotFile:
    """An open snapshot. `bytes_read` counts the bytes read so far.

    Raises `InputError` for a file that is damaged, of a newer version, or no snapshot, and later for bytes that can no
    longer be read. Close it, or use it in a `with`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes_read = 0
        self._file = open_regular(path, "snapshot")
        try:
            self.file_bytes = os.fstat(self._file).st_size
            length = header_length(self._read(0, min(PREFIX_BYTES, self.file_bytes)), self.file_bytes)
            self.header = parse(self._read(PREFIX_BYTES, PREFIX_BYTES + length), self.file_bytes)
            self.manifest: Manifest = read_manifest(self.header)
        except Damaged as error:
            self.close()
            raise Damaged(f"'{path}' cannot be opened: {error}. Take another copy of it.") from None
        except InputError as error:
            self.close()
            raise InputError(f"'{path}' cannot be opened: {error}.") from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SnapshotFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    # ---- bytes and arrays ----------------------------------------------------------------------------------------

    @property
    def entries(self) -> dict[str, TensorEntry]:
        """Every tensor by name."""
        return self.header.entries

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def _read(self, start: int, stop: int) -> bytes:
        """All bytes of the file from `start` to `stop`."""
        pieces: list[bytes] = []
        at = start
        try:
            while at < stop:
                piece = os.pread(self._file, stop - at, at)
                if not piece:
                    raise InputError(f"'{self.path}' became shorter while it was read: take another copy of it.")
                pieces.append(piece)
                at += len(piece)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(f"'{self.path}' cannot be read any more ({reason}): take another copy of it.") from None
        self.bytes_read += stop - start
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def pieces(self, name: str, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
        """The bytes of a tensor, in pieces of bounded size."""
        entry = self.entries[name]
        for start in range(entry.start, entry.stop, piece_bytes):
            yield self._read(start, min(start + piece_bytes, entry.stop))

    def array(self, name: str, *index: int, rows: range | None = None) -> Array:
        """Read a tensor, or its part at the leading `index`, and of that only the `rows` of the next dimension. Numbers
        are as they are in the file: bfloat16 as uint16, e4m3 as uint8."""
        entry = self.entries.get(name)
        if entry is None:
            raise InputError(f"'{self.path}' has no '{name}'.")
        start, shape = entry.start, entry.shape
        width = ITEM_BYTES[entry.dtype]
        for place in index:
            if not 0 <= place < shape[0]:
                raise InputError(f"'{name}' has {shape[0]} of what number {place} was asked for.")
            shape = shape[1:]
            start += place * math.prod(shape) * width
        if rows is not None:
            first, stop = max(0, rows.start), min(rows.stop, shape[0])
            start += first * math.prod(shape[1:]) * width
            shape = (max(0, stop - first), *shape[1:])
        content = self._read(start, start + math.prod(shape) * width)
        return np.frombuffer(content, NUMPY_NAMES[entry.dtype]).reshape(shape)

    def numbers(self, name: str, *index: int, rows: range | None = None) -> Array:
        """Like `array`, converted to float32 (float64 stays)."""
        return numbers_of(self.array(name, *index, rows=rows), self.entries[name].dtype)

    # ---- what it holds -------------------------------------------------------------------------------------------

    @property
    def layers(self) -> tuple[LayerEntry, ...]:
        return self.manifest.layers

    def rows(self, layer: int, tensor: Part, head: int, rows: range | None = None) -> Array:
        """Rows `[T, D]` of K or V of one head as attention reads them, in float32; `rows` selects some of them. `head`
        is the index in the model, of whose heads the file may have some."""
        entry = self.manifest.layer(layer)
        if head not in entry.heads:
            raise InputError(
                f"'{self.path}' has no head {head} of layer {layer}: {len(entry.heads)} others were written."
            )
        wanted = range(entry.num_rows) if rows is None else range(max(0, rows.start), min(rows.stop, entry.num_rows))
        return decoded(self.array, entry, tensor, entry.heads.index(head), wanted)

    def positions(self, layer: int, head: int) -> Array:
        """Positions `[S]` of the rows of one head; raises `InputError` if they do not ascend."""
        entry = self.manifest.layer(layer)
        if not entry.has_positions:
            return np.arange(entry.first, entry.first + entry.num_rows)
        found = self.array(entry.name("positions"), entry.heads.index(head))
        if not do_ascend(found, self.manifest.num_tokens):
            raise InputError(
                f"'{self.path}' is damaged: the positions of layer {layer}, head {head} do not ascend within its "
                f"{self.manifest.num_tokens:,} tokens. Take another copy of it."
            )
        return found

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The ids of the tokens computed; empty if the file has none."""
        return tuple(self.array("token_ids", 0).tolist()) if "token_ids" in self else ()

    @property
    def waiting_ids(self) -> tuple[int, ...]:
        """Ids of the prompt's tokens that were not computed yet."""
        return tuple(self.array("waiting_ids").tolist()) if "waiting_ids" in self else ()

    @property
    def token_texts(self) -> tuple[str, ...]:
        """The text of every token; empty if the file has none."""
        if "token_texts" not in self:
            return ()
        content, ends = self.array("token_texts").tobytes(), self.array("token_texts.offsets").tolist()
        if ends[0] < 0 or ends[-1] > len(content) or any(stop < start for start, stop in pairwise(ends)):
            raise InputError(
                f"'{self.path}' is damaged: the texts of its tokens lie outside of it. Take another copy of it."
            )
        return tuple(content[start:stop].decode("utf-8", "replace") for start, stop in pairwise(ends))

    @property
    def records(self) -> Records:
        """The records of the steps, each read on access."""
        return Records(self)

    def attention(self, layer: int) -> Array | None:
        """The attention weights `[H, S]` of the newest query in one layer; None if they are not written."""
        name = self.manifest.layer(layer).name("attention")
        return self.numbers(name) if name in self else None


def do_ascend(positions: Array, num_tokens: int) -> bool:
    """Whether the positions `[…, S]` of every head ascend and are within the tokens."""
    is_inside = positions[..., 0] >= 0, positions[..., -1] < num_tokens, positions[..., 1:] > positions[..., :-1]
    return all(bool(each.all()) for each in is_inside)


class Pieces(Sequence[Any]):
    """Concatenated byte strings, each read on access; none where the file does not have them."""

    def __init__(self, file: SnapshotFile, name: str) -> None:
        self._file, self._name = file, name
        self._count = file.entries[f"{name}.offsets"].shape[0] - 1 if name in file else 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, int):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        return self._read(place)

    def _read(self, place: int) -> Any:
        start, stop = self._file.array(f"{self._name}.offsets", rows=range(place, place + 2)).tolist()
        if not 0 <= start <= stop <= self._file.entries[self._name].num_bytes or stop - start > MAX_RECORD_BYTES:
            raise InputError(f"'{self._file.path}' is damaged: piece {place} of '{self._name}' lies outside of it.")
        return self._file.array(self._name, rows=range(start, stop)).tobytes()


class Records(Pieces):
    """The step records of a snapshot, each decoded on access."""

    def __init__(self, file: SnapshotFile) -> None:
        super().__init__(file, "records")
        mine, fields_of = record_fields(), file.manifest.record_fields
        self._incompatible = next(
            (name for name, theirs in fields_of.items() if not _agree(theirs, mine.get(name))), ""
        )

    def _read(self, place: int) -> StepRecord:
        try:
            return self._decoded(super()._read(place))
        except (Damaged, WireError) as error:
            reason = str(error)[:200]
            raise InputError(f"'{self._file.path}' is damaged: record {place} cannot be read ({reason}).") from None

    def _decoded(self, content: bytes) -> StepRecord:
        if self._incompatible:
            raise Damaged(f"another version of this program wrote it, whose {self._incompatible} has other fields")
        record: StepRecord = unpacked(content, StepRecord)
        for step in record.sequences:
            _check(step)
        return record


# ---- codes to the rows that attention reads, exact to the last bit ---------------------------------------------------

# The arithmetic is that of `engine.cache.compressed`; a test compares the two.

ReadArray = Callable[..., Array]

E8M0_BIAS, E8M0_NAN = 127, 255


def numbers_of(array: Array, dtype: str) -> Array:
    """Numbers of a safetensors dtype as float32; float64 stays float64."""
    match dtype:
        case "BF16":
            return (array.astype(np.uint32) << 16).view(np.float32)
        case "F8_E4M3":
            return E4M3[array]
        case "F64":
            return array
    return array.astype(np.float32, copy=False)


def decoded(read: ReadArray, entry: LayerEntry, tensor: Part, head: int, rows: range) -> Array:
    """Rows `[T, D]` of K or V of the head at index `head` in the file, as float32. `read(name, *index, rows=…)` reads
    arrays."""
    part, name = entry.part(tensor), entry.name(tensor)
    exact = CODE_OF_DTYPE[entry.dtype]
    if not part.num_coded:
        return numbers_of(read(name, 0, head, rows=rows), exact)
    found = []
    coded = range(rows.start, min(rows.stop, part.num_coded))
    if len(coded):
        with np.errstate(invalid="ignore", over="ignore"):  # scales in a damaged file may be any numbers
            found.append(_rounded(_coded_rows(read, name, part, tensor, head, coded), exact))
    if rows.stop > part.num_coded:
        behind = range(max(0, rows.start - part.num_coded), rows.stop - part.num_coded)
        found.append(numbers_of(read(f"{name}.exact", 0, head, rows=behind), exact))
    if len(found) == 1:
        return found[0]
    return np.concatenate(found or [np.zeros((0, entry.dim(tensor)), np.float32)])


def _coded_rows(read: ReadArray, name: str, part: PartEntry, tensor: Part, head: int, rows: range) -> Array:
    if part.codec == TRANSFORMERS_FP8:
        return E4M3[read(f"{name}.codes", 0, head, rows=rows)] * np.float32(read(f"{name}.scale")[0])
    coding = coding_of(part)
    if coding.is_kivi:
        kivi = _kivi_keys if tensor == "keys" else _kivi_values
        return kivi(read, name, coding.bits or 8, coding.group_size, head, rows)
    codes = read(f"{name}.codes", 0, head, rows=rows)
    if coding.name in ("fp8", "fp8-head"):
        scale = read(f"{name}.scale")
        return E4M3[codes] * np.float32(scale[0, min(head, scale.shape[1] - 1), 0, 0])
    scales = read(f"{name}.scales", 0, head, rows=rows)
    if coding.name == "int8":
        return codes.astype(np.float32) * scales.astype(np.float32)
    factors = _powers(scales) if coding.name == "fp8-max-e8m0" else scales
    grouped = E4M3[codes].reshape(*factors.shape, -1)
    return (grouped * factors[..., None]).reshape(codes.shape)


def _rounded(numbers: Array, dtype: str) -> Array:
    """Round float32 numbers to the dtype of the rows, to nearest, ties to even; the result is float32."""
    if dtype == "F16":
        return numbers.astype(np.float16).astype(np.float32)
    if dtype != "BF16":
        return numbers
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(numbers), numbers, nearest.view(np.float32))


# ---- e4m3 and e8m0 -----------------------------------------------------------------------------------------------


def _e4m3_table() -> Array:
    """The numbers of the 256 codes of e4m3 (1 sign, 4 exponent and 3 fraction bits; no infinity; NaN in both signs)."""
    codes = np.arange(256)
    exponent, fraction = (codes >> 3) & 15, codes & 7
    size = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    numbers = np.where(codes & 128, -size, size).astype(np.float32)
    numbers[[127, 255]] = np.nan
    return numbers


E4M3 = _e4m3_table()


def _powers(exponents: Array) -> Array:
    """Powers of two from e8m0 exponents; 255 is NaN."""
    powers = np.exp2(exponents.astype(np.float32) - E8M0_BIAS, dtype=np.float32)
    return np.where(exponents == E8M0_NAN, np.float32(np.nan), powers)


# ---- KIVI --------------------------------------------------------------------------------------------------------


def _kivi_keys(read: ReadArray, name: str, bits: int, group: int, head: int, rows: range) -> Array:
    """Dequantise KIVI's keys. Words are packed along the tokens; a group of tokens shares a scale and an offset per
    channel."""
    first, stop = rows.start // group * group, -(-rows.stop // group) * group
    per_word = WORD_BITS // bits
    words = read(f"{name}.words", 0, head, rows=range(first // per_word, stop // per_word))
    shared = range(first // group, stop // group)
    scales, offsets = (
        read(f"{name}.{what}", 0, head, rows=shared).astype(np.float32) for what in ("scales", "offsets")
    )
    codes = _unpacked(words.T, bits).T.reshape(len(shared), group, -1)
    numbers = codes * scales[:, None] + offsets[:, None]
    return numbers.reshape(stop - first, -1)[rows.start - first : rows.stop - first]


def _kivi_values(read: ReadArray, name: str, bits: int, group: int, head: int, rows: range) -> Array:
    """Dequantise KIVI's values. Words are packed along the channels; a group of channels of a token shares a scale and
    an offset."""
    words, scales, offsets = (read(f"{name}.{what}", 0, head, rows=rows) for what in ("words", "scales", "offsets"))
    codes = _unpacked(words, bits).reshape(len(rows), -1, group)
    numbers = codes * scales.astype(np.float32)[..., None] + offsets.astype(np.float32)[..., None]
    return numbers.reshape(len(rows), -1)


def _unpacked(words: Array, bits: int) -> Array:
    """Unpack words `[…, N b / 32]` to codes `[…, N]` as float32; the first code is in the lowest bits."""
    shifts = np.arange(0, WORD_BITS, bits, dtype=np.uint32)
    codes = (np.ascontiguousarray(words).view(np.uint32)[..., None] >> shifts) & np.uint32(2**bits - 1)
    return codes.reshape(*words.shape[:-1], -1).astype(np.float32)
