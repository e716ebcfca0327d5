"""Reads an opened snapshot: its header at once, everything else on request. No torch.

Bytes are read with `pread` and never mapped: if the file is truncated, or its drive disappears, this raises an error
and does not kill the process. Opening takes the same time for files of any size.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
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
from engine.snapshot import manifest as manifests
from engine.snapshot.decode import decoded, numbers_of
from engine.snapshot.format import (
    ITEM_BYTES,
    MAX_RECORD_BYTES,
    PREFIX_BYTES,
    Damaged,
    LayerEntry,
    Manifest,
    TensorEntry,
    header_length,
    parse,
)
from engine.spec.codec import Part
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


Array = np.ndarray[Any, Any]

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
            self.manifest: Manifest = manifests.read(self.header)
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
        if found[0] < 0 or found[-1] >= self.manifest.num_tokens or (found[1:] <= found[:-1]).any():
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

    @property
    def preview(self) -> Array | None:
        """Grey levels `[layers, K and V, rows, columns]`: channels as rows, tokens as columns; 0: no row, 255: not
        finite."""
        return self.array("preview") if "preview" in self else None


class Pieces(Sequence[bytes]):
    """Concatenated byte strings, each read on access."""

    def __init__(self, file: SnapshotFile, name: str) -> None:
        self._file, self._name = file, name
        self._size = file.entries[name].num_bytes
        self._count = file.entries[f"{name}.offsets"].shape[0] - 1

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, int):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        start, stop = self._file.array(f"{self._name}.offsets", rows=range(place, place + 2)).tolist()
        if not 0 <= start <= stop <= self._size or stop - start > MAX_RECORD_BYTES:
            raise InputError(f"'{self._file.path}' is damaged: piece {place} of '{self._name}' lies outside of it.")
        return self._file.array(self._name, rows=range(start, stop)).tobytes()


class Records(Sequence[StepRecord]):
    """The step records of a snapshot, each decoded on access."""

    def __init__(self, file: SnapshotFile) -> None:
        self._path = file.path
        self._pieces: Sequence[bytes] = Pieces(file, "records") if "records" in file else ()
        mine, fields_of = record_fields(), file.manifest.record_fields
        self._incompatible = next(
            (name for name, theirs in fields_of.items() if not _agree(theirs, mine.get(name))), ""
        )

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, int):
            return [self[i] for i in range(*index.indices(len(self)))]
        try:
            return self._decoded(self._pieces[index])
        except (Damaged, WireError) as error:
            reason = str(error)[:200]
            raise InputError(f"'{self._path}' is damaged: record {index} cannot be read ({reason}).") from None

    def _decoded(self, content: bytes) -> StepRecord:
        if self._incompatible:
            raise Damaged(f"another version of this program wrote it, whose {self._incompatible} has other fields")
        record: StepRecord = unpacked(content, StepRecord)
        for step in record.sequences:
            _check(step)
        return record


def is_snapshot(path: Path) -> bool:
    """Whether the file can be opened as a snapshot."""
    try:
        SnapshotFile(path).close()
    except InputError:
        return False
    return True
