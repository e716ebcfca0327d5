"""Step records inside a snapshot, each encoded on its own, so that a reader decodes only those it needs. No torch.

A record is a MessagePack list of its fields, in the order given in the manifest under `record_fields`. A struct in a
field that can hold several types begins with its name. An array is a list of the NumPy name of its dtype, its shape and
its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, get_args

import numpy as np
from msgspec import Struct
from msgspec.structs import fields

from engine.errors import InputError
from engine.snapshot.format import MAX_RECORD_BYTES
from engine.snapshot.header import Damaged
from engine.wire.encoding import WireError, packed, unpacked
from engine.wire.records import SequenceStep, StepRecord


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


class RecordReader:
    """Decodes the records of a file whose structs have the fields `fields_of`."""

    def __init__(self, fields_of: Mapping[str, tuple[str, ...]]) -> None:
        mine = record_fields()
        self._incompatible = next(
            (name for name, theirs in fields_of.items() if not _agree(theirs, mine.get(name))), ""
        )

    def record(self, content: bytes) -> StepRecord:
        """Decode one record; raises `Damaged` if it is invalid."""
        if self._incompatible:
            raise Damaged(f"another version of this program wrote it, whose {self._incompatible} has other fields")
        if len(content) > MAX_RECORD_BYTES:
            raise Damaged(f"it has {len(content):,} bytes and at most {MAX_RECORD_BYTES:,} are read")
        try:
            record: StepRecord = unpacked(content, StepRecord)
        except WireError as error:
            raise Damaged(str(error)[:200]) from None
        for step in record.sequences:
            _check(step)
        return record


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
