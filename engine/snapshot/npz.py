"""Snapshots as NumPy's `npz`, both ways. What comes in is looked at before anything of its size is allocated.

Members are `layers.{i}.keys` and `layers.{i}.values` `[1, H, S, D]`, `token_ids`, and what else a snapshot has of small
tensors. Coded rows are decoded; bfloat16, which NumPy has not, becomes float32.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import psutil
from numpy.lib import format as npy

from engine.errors import InputError
from engine.files.atomic import replacing
from engine.snapshot.format import PARTS, LayerEntry
from engine.snapshot.header import NAME
from engine.snapshot.read import NUMPY_NAMES, SnapshotFile
from engine.spec.codec import Part

Array = np.ndarray[Any, Any]
Member = tuple[str, str, tuple[int, ...], Iterator[Array]]  # name, dtype, shape, the numbers a bounded piece at a time
ROWS_AT_ONCE = 8192
MAX_MEMBERS = 1 << 16
MAX_RATIO = 1100  # what deflate can make of nothing but zeros
BESIDE = ("token_ids", "positions", "waiting_ids", "logits", "preview")


def to_npz(file: SnapshotFile, path: Path) -> Iterator[int]:
    """Write the arrays of a snapshot; yields the bytes written so far."""
    yield from write_npz(_members(file), path)


def write_npz(members: Iterable[Member], path: Path) -> Iterator[int]:
    """Write arrays; yields the bytes written so far."""
    done = 0
    with replacing(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, dtype, shape, pieces in members:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array_header_1_0(member, {"descr": dtype, "fortran_order": False, "shape": shape})
                for piece in pieces:
                    member.write(np.ascontiguousarray(piece, dtype).data.cast("B") if piece.size else b"")
                    done += piece.nbytes
                    yield done


def _members(file: SnapshotFile) -> Iterator[Member]:
    for entry in file.layers:
        dtype = {"float16": "<f2", "float64": "<f8"}.get(entry.dtype, "<f4")
        for part in PARTS:
            shape = (1, len(entry.heads), entry.num_rows, entry.dim(part))
            yield entry.name(part), dtype, shape, _rows(file, entry, part)
        if entry.has_positions:
            places = (file.positions(entry.index, head) for head in entry.heads)
            yield entry.name("positions"), "<i8", (len(entry.heads), entry.num_rows), places
    for name in BESIDE:
        if name in file:
            known = file.entries[name]
            dtype = "<f4" if known.dtype == "BF16" else NUMPY_NAMES[known.dtype]
            whole = file.numbers(name) if known.dtype == "BF16" else file.array(name)
            yield name, dtype, known.shape, iter([whole])


def _rows(file: SnapshotFile, entry: LayerEntry, part: Part) -> Iterator[Array]:
    for head in entry.heads:
        for start in range(0, entry.num_rows, ROWS_AT_ONCE):
            yield file.rows(entry.index, part, head, range(start, start + ROWS_AT_ONCE))


# ---- in ----------------------------------------------------------------------------------------------------------


def from_npz(path: Path) -> tuple[list[tuple[Array, Array]], Array | None]:
    """Pairs of keys and values, one a layer, and the token ids where there are any; raises `InputError` for a file that
    holds no such thing, would run code, or would not fit."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = _checked(archive, path)
            layers = sorted({int(name.split(".")[1]) for name in members if _is_part(name)})
            if not layers or layers != list(range(len(layers))):
                raise InputError(f"'{path}' has no layers.0.keys and layers.0.values, and so on: name its arrays so.")
            pairs = [tuple(_read(archive, f"layers.{i}.{part}", path) for part in PARTS) for i in layers]
            ids = _read(archive, "token_ids", path) if "token_ids" in members else None
    except KeyError as error:
        raise InputError(f"'{path}' lacks an array ({str(error)[:80]}): save keys and values of each layer.") from None
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, ValueError, EOFError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())[:120]
        raise InputError(f"'{path}' is no npz file that can be read ({reason}): save it again.") from None
    return [(keys, values) for keys, values in pairs], ids


def is_of_layer(name: str) -> bool:
    """Whether an npz has that tensor of a snapshot for one of its layers."""
    return _is_part(name) or (name.startswith("layers.") and name.endswith(".positions"))


def _is_part(name: str) -> bool:
    words = name.split(".")
    return len(words) == 3 and words[0] == "layers" and words[1].isdecimal() and len(words[1]) < 5 and words[2] in PARTS


def _checked(archive: zipfile.ZipFile, path: Path) -> set[str]:
    """The arrays of an archive by name. Sizes are those of its directory: what is read later ends there."""
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise InputError(f"'{path}' has {len(members):,} members, and at most {MAX_MEMBERS:,} are read.")
    total = 0
    names: set[str] = set()
    for member in members:
        name = member.filename.removesuffix(".npy")
        if not NAME.fullmatch(name) or name in names or not member.filename.endswith(".npy"):
            raise InputError(f"'{path}' has a member {member.filename[:40]!r}, which is no array: save arrays alone.")
        if member.file_size > MAX_RATIO * max(1, member.compress_size):
            raise InputError(
                f"'{path}' would grow from {member.compress_size:,} bytes to {member.file_size:,}: a bomb."
            )
        names.add(name)
        total += member.file_size
    if total > (free := psutil.virtual_memory().available):
        raise InputError(f"'{path}' holds {total:,} bytes, and {free:,} are free in memory: save fewer layers at once.")
    return names


def _read(archive: zipfile.ZipFile, name: str, path: Path) -> Array:
    """One array; its header must agree with the size of its member before room is made for it."""
    member = archive.getinfo(f"{name}.npy")
    with archive.open(member) as stream:
        shape, fortran, dtype = _npy_header(stream)
        if dtype.hasobject or dtype.kind not in "fiu" or dtype.itemsize > 8:
            raise InputError(f"'{path}' has {name} of {str(dtype)[:20]}: save plain numbers.")
        size = dtype.itemsize * math.prod(shape)
        if any(n < 0 for n in shape) or size != member.file_size - stream.tell():
            raise InputError(f"'{path}' has {name} of shape {list(shape)[:8]}, which are not its bytes: save it again.")
        content = stream.read(size)
    array = np.frombuffer(content, dtype)
    return array.reshape(shape, order="F" if fortran else "C")


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    if (version := npy.read_magic(stream)) != (1, 0):  # others have headers of gigabytes
        raise ValueError(f"version {version} of npy")
    shape, fortran, dtype = npy.read_array_header_1_0(stream)
    return tuple(shape), bool(fortran), dtype
