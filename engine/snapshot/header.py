"""Parses the header of a safetensors file, with checks before anything of the claimed size is allocated. No torch.

The first eight bytes are the length of the header, little-endian; then follows one JSON object, padded with spaces, and
then the tensors in the order of their offsets, without gaps.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import msgspec
from msgspec import Struct

from engine.errors import InputError
from engine.snapshot.format import ITEM_BYTES, MAX_DIMENSIONS, MAX_HEADER_BYTES, MAX_TENSORS

PREFIX_BYTES = 8
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
MAX_OFFSET = 1 << 62


class DescribedTensor(Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor as described in the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class TensorEntry(Struct, frozen=True):
    """The dtype and shape of a tensor, and where it is in the file, in bytes from its beginning."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def num_bytes(self) -> int:
        return self.stop - self.start


class Header(Struct, frozen=True):
    """The parsed header: metadata, tensors in the order of their offsets, and the text itself."""

    metadata: dict[str, str]
    entries: dict[str, TensorEntry]
    text: bytes


class Damaged(InputError):
    """A file that is no snapshot, or is incomplete. The message is a clause with the reason; the caller adds the
    file."""


def header_length(prefix: bytes, file_bytes: int) -> int:
    """The length of the header from the first eight bytes; raises `Damaged` if a file of `file_bytes` cannot have such
    a header."""
    if len(prefix) < PREFIX_BYTES:
        raise Damaged(f"it has {file_bytes} bytes and no header")
    length = int.from_bytes(prefix, "little")
    if length > file_bytes - PREFIX_BYTES:
        raise Damaged(
            f"its header claims {length:,} bytes and the file has {file_bytes:,}: it is cut short, or no snapshot"
        )
    if length > MAX_HEADER_BYTES:
        raise Damaged(f"its header claims {length:,} bytes and at most {MAX_HEADER_BYTES:,} are read")
    if length < 2:
        raise Damaged("its header is empty")
    return length


def parse(text: bytes, file_bytes: int) -> Header:
    """Parse the header of a file of `file_bytes`; raises `Damaged` with the reason."""
    if not text.startswith(b"{"):
        raise Damaged("its header does not begin with an object: this is no safetensors file")
    try:
        raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        if len(raw) > MAX_TENSORS:
            raise Damaged(f"its header names {len(raw):,} tensors and at most {MAX_TENSORS:,} are read")
        metadata = msgspec.json.decode(raw.pop("__metadata__", b"{}"), type=dict[str, str])
        written = {name: msgspec.json.decode(each, type=DescribedTensor) for name, each in raw.items()}
        json.loads(text, object_pairs_hook=_refuse_duplicates)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        if isinstance(error, Damaged):
            raise
        raise Damaged(f"its header is not what safetensors writes ({str(error)[:120]})") from None
    return Header(metadata, _laid_out(written, PREFIX_BYTES + len(text), file_bytes), text)


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    names = {name for name, _ in pairs}
    if len(names) < len(pairs):
        raise Damaged("its header names something twice")


def _laid_out(written: dict[str, DescribedTensor], begin: int, file_bytes: int) -> dict[str, TensorEntry]:
    """The tensors in the order of their offsets; raises `Damaged` unless they fill the file exactly."""
    entries: dict[str, TensorEntry] = {}
    at = 0
    for name, each in sorted(written.items(), key=lambda item: item[1].data_offsets):
        start, stop = each.data_offsets
        _check(name, each)
        if start != at:
            raise Damaged(f"tensor '{name}' begins at byte {start:,} of the data, where {at:,} was expected")
        at = stop
        entries[name] = TensorEntry(name, each.dtype, each.shape, begin + start, begin + stop)
    if begin + at != file_bytes:
        what = "it is cut short" if begin + at > file_bytes else "something was added to it"
        raise Damaged(f"its tensors end at byte {begin + at:,} and the file at {file_bytes:,}: {what}")
    return entries


def _check(name: str, each: DescribedTensor) -> None:
    """Check one tensor: its name, dtype and shape, and that its offsets agree with them."""
    if not NAME.fullmatch(name):
        raise Damaged(f"a tensor is named {name[:40]!r}, which is no name")
    if each.dtype not in ITEM_BYTES:
        raise Damaged(f"tensor '{name}' has the dtype {each.dtype[:20]!r}, which is not known")
    if len(each.shape) > MAX_DIMENSIONS:
        raise Damaged(f"tensor '{name}' has {len(each.shape)} dimensions and at most {MAX_DIMENSIONS} are read")
    start, stop = each.data_offsets
    if not (0 <= start <= stop <= MAX_OFFSET) or any(not 0 <= size <= MAX_OFFSET for size in each.shape):
        raise Damaged(f"tensor '{name}' has a negative or an impossible size")
    if stop - start != ITEM_BYTES[each.dtype] * math.prod(each.shape):
        raise Damaged(f"tensor '{name}' of shape {list(each.shape)} has {stop - start:,} bytes, which is not its size")
    if ITEM_BYTES[each.dtype] * math.prod(max(1, size) for size in each.shape) > MAX_OFFSET:
        raise Damaged(f"tensor '{name}' of shape {list(each.shape)} has an impossible size")


def padded(entries: dict[str, object]) -> bytes:
    """The header text for these entries, padded so that the tensors begin at a multiple of eight."""
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return text + b" " * (-len(text) % PREFIX_BYTES)
