"""Writes and reads caches as NumPy's `npz`. Files are checked before anything of the claimed size is allocated.

Members are `layers.{i}.keys` and `layers.{i}.values` `[1, H, S, D]`, `token_ids`, and the other small tensors of a
snapshot. If a layer lacks the rows of some tokens, `layers.{i}.positions` `[H, S]` has the positions of its rows; if
some kv heads were left out, `layers.{i}.heads` lists those that are there. Coded rows are dequantised; bfloat16, which
NumPy does not have, becomes float32.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import psutil
from numpy.lib import format as npy

from engine.errors import InputError
from engine.files.atomic import replacing
from engine.files.text import open_regular
from engine.snapshot.format import MAX_LENGTH, NAME, Array, LayerEntry
from engine.snapshot.read import do_ascend
from engine.spec.codec import PARTS

Member = tuple[str, str, tuple[int, ...], Iterator[Array]]  # name, dtype, shape, pieces of bounded size
MAX_MEMBERS = 1 << 16
MAX_DIRECTORY_BYTES = 8 << 20
MAX_RATIO = 1100  # the compression ratio of deflate for zeros
SMALL_TENSORS = ("token_ids", "positions", "waiting_ids", "logits", "preview")


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


def placement(entry: LayerEntry) -> dict[str, Array]:
    """The members that replace what the manifest of a snapshot says: the positions of a layer's rows if they do not
    begin at the first token, and its heads if some are left out."""
    found: dict[str, Array] = {}
    if entry.first and not entry.has_positions:
        places = np.arange(entry.first, entry.first + entry.num_rows)
        found[entry.name("positions")] = np.tile(places, (len(entry.heads), 1))
    if len(entry.heads) < entry.num_kv_heads:
        found[entry.name("heads")] = np.array(entry.heads, np.int64)
    return found


# ---- reading -----------------------------------------------------------------------------------------------------


class ForeignLayer(NamedTuple):
    """Keys and values of a layer, and the positions `[H, S]` of its rows; None: consecutive from 0."""

    keys: Array
    values: Array
    positions: Array | None = None


@dataclass(frozen=True, eq=False)
class ForeignCache:
    """A cache of another program's file: its layers by index, the number and the ids of the tokens computed if it says
    so, and the fields of a manifest that it gives."""

    layers: dict[int, ForeignLayer]
    token_ids: list[int] | None = None
    num_tokens: int | None = None  # None: as many as there are rows
    fields: dict[str, str] = field(default_factory=dict)


def from_npz(path: Path) -> ForeignCache:
    """Read an npz file; raises `InputError` if it has no keys and values, lacks positions that are needed, contains
    pickled objects, or does not fit in memory."""
    try:
        with BoundedOpening(io.FileIO(open_regular(path, "npz file"))) as stream, zipfile.ZipFile(stream) as archive:
            stream.limit = None
            members = _checked(archive, path)
            layers = sorted({int(name.split(".")[1]) for name in members if _is_part(name)})
            if not layers:
                raise InputError(f"'{path}' has no layers.0.keys and layers.0.values, and so on: name its arrays so.")
            if partial := [i for i in layers if f"layers.{i}.heads" in members]:
                raise InputError(f"'{path}' has some of the kv heads of layer {partial[0]}: export all of them.")
            found = {i: _layer(archive, i, members, path) for i in layers}
            ids, places = (_read(archive, n, path) if n in members else None for n in ("token_ids", "positions"))
    except KeyError as error:
        raise InputError(f"'{path}' lacks an array ({str(error)[:80]}): save keys and values of each layer.") from None
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, ValueError, EOFError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())[:120]
        raise InputError(f"'{path}' is no npz file that can be read ({reason}): save it again.") from None
    computed = ids if ids is not None else places
    token_ids = None if ids is None else ids.reshape(-1).tolist()
    cache = ForeignCache(found, token_ids, None if computed is None else computed.size, {"cache": "npz"})
    _check_placement(cache, path)
    return cache


class BoundedOpening(io.BufferedReader):
    """A file that refuses reads of more than `limit` bytes until `limit` is set to None: opening an archive reads and
    parses its whole directory."""

    limit: int | None = MAX_DIRECTORY_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        if self.limit is not None and size is not None and size > self.limit:
            raise ValueError(f"its directory has {size:,} bytes, and at most {self.limit:,} are read")
        return super().read(size)


def _layer(archive: zipfile.ZipFile, index: int, members: set[str], path: Path) -> ForeignLayer:
    name = f"layers.{index}.positions"
    keys, values = (_read(archive, f"layers.{index}.{part}", path) for part in PARTS)
    return ForeignLayer(keys, values, _read(archive, name, path) if name in members else None)


def _check_placement(cache: ForeignCache, path: Path) -> None:
    """Raise `InputError` for rows whose positions are unknown or impossible."""
    n = cache.num_tokens
    if n is not None and n > MAX_LENGTH:
        raise InputError(f"'{path}' has {n:,} tokens, and {MAX_LENGTH:,} are read at most: save a part of it.")
    for index, layer in cache.layers.items():
        num_rows, places = layer.keys.shape[-2] if layer.keys.ndim > 1 else 0, layer.positions
        if places is None and n is not None and num_rows < n:
            raise InputError(
                f"'{path}' has fewer rows than its {n:,} tokens in layer {index}, and does not say where they stand: "
                f"add layers.{index}.positions, or give the ids of the tokens that have rows alone."
            )
        if places is None:
            continue
        heads = layer.keys.shape[-3] if layer.keys.ndim > 2 else 0
        is_alike = places.dtype.kind in "iu" and places.shape == (heads, num_rows) and places.size > 0
        if not is_alike or n is None or not n:
            raise InputError(
                f"'{path}' has layers.{index}.positions that are not those of its rows: save whole numbers [H, S], and "
                "the token_ids with them."
            )
        if not do_ascend(places, n):
            raise InputError(
                f"'{path}' has layers.{index}.positions that do not ascend from 0 to {n - 1:,}: export it again."
            )


def is_layer_tensor(name: str) -> bool:
    """Whether a tensor of a snapshot is written to an npz for one of its layers."""
    return _is_part(name) or (name.startswith("layers.") and name.endswith(".positions"))


def _is_part(name: str) -> bool:
    words = name.split(".")
    return len(words) == 3 and words[0] == "layers" and words[1].isdecimal() and len(words[1]) < 5 and words[2] in PARTS


def _checked(archive: zipfile.ZipFile, path: Path) -> set[str]:
    """The names of the arrays of an archive, checked. Sizes are those of the directory; reading stops there."""
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
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InputError(
                f"'{path}' has {name} compressed in a way that is not read: use savez or savez_compressed."
            )
        names.add(name)
        total += member.file_size
    if 2 * total > (free := psutil.virtual_memory().available):  # the arrays are copied once, into a snapshot
        raise InputError(
            f"'{path}' holds {total:,} bytes, twice of which are needed, and {free:,} are free in memory: save fewer "
            "layers at once."
        )
    return names


def _read(archive: zipfile.ZipFile, name: str, path: Path) -> Array:
    """Read one array. Its header must agree with the size of its member before memory is allocated."""
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
    return array.astype(dtype.newbyteorder("="), copy=False).reshape(shape, order="F" if fortran else "C")


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    if (version := npy.read_magic(stream)) != (1, 0):  # later versions allow headers of gigabytes
        raise ValueError(f"version {version} of npy")
    shape, fortran, dtype = npy.read_array_header_1_0(stream)
    return tuple(shape), bool(fortran), dtype
