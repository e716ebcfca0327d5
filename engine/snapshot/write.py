"""Writes a snapshot as one safetensors file: atomically, with progress, and without a second copy of it in memory.

The format is specified in `resources/snapshot-format.md`. `engine.files.atomic` ensures that the file is complete or
absent.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import torch

from engine.cache.contract import InPieces, Scattered
from engine.errors import InputError
from engine.files.atomic import replacing, start_flush
from engine.look.magnitudes import LayerCount, counted, magnitudes_of
from engine.look.reductions import pooled
from engine.snapshot.format import (
    DIGITS,
    EXTREMES,
    FORMAT,
    HEADER_CHECKSUM,
    ITEM_BYTES,
    MAX_HEADER_BYTES,
    NO_CHECKSUM,
    PREFIX_BYTES,
    PREVIEW_SIZE,
    WRITTEN_KIND,
    Checksum,
    ChecksumKind,
    Damaged,
    LayerEntry,
    PyramidEntry,
    checksum,
    num_bytes,
    padded,
    parse,
    read_manifest,
)
from engine.spec.codec import PARTS, Part

CHUNK_BYTES = 8 << 20
BATCH_BYTES = CHUNK_BYTES // 2
MAX_WAITING = 6  # batches that wait to be written

DTYPE_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPES = {code: dtype for dtype, code in DTYPE_CODES.items()}


@dataclass(frozen=True, eq=False)
class LazyTensor:
    """A tensor that is computed when it is about to be written, and freed afterwards, such as dequantised rows."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], torch.Tensor]

    def pieces(self, num_bytes: int) -> Iterator[torch.Tensor]:
        found = self.make()
        assert (found.dtype, tuple(found.shape)) == (self.dtype, self.shape), "a tensor is not what was announced"
        yield from pieces(found, num_bytes)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The contents of a snapshot file: tensors by name, and the manifest as strings."""

    tensors: Mapping[str, torch.Tensor | InPieces]
    manifest: Mapping[str, str]

    @property
    def num_bytes(self) -> int:
        return sum(num_bytes(DTYPE_CODES[t.dtype], tuple(t.shape)) for t in self.tensors.values())

    @property
    def order(self) -> list[str]:
        """The names of the tensors in the order of writing, which aligns all of them: tensors whose size is not a
        multiple of eight bytes come last, wider dtypes first."""
        return sorted(self.tensors, key=self._sort_key)

    def _sort_key(self, name: str) -> int:
        tensor = self.tensors[name]
        dtype = DTYPE_CODES[tensor.dtype]
        return 8 - ITEM_BYTES[dtype] if num_bytes(dtype, tuple(tensor.shape)) % 8 else -1


def write_snapshot(snapshot: Snapshot, path: Path) -> Iterator[int]:
    """Write the file; yields the bytes written so far. Closing the iterator early leaves no trace.

    Raises `InputError` if the path cannot be written or the disk is full; an older file stays as it was.
    """
    header = header_of(snapshot)
    if snapshot.manifest.get("format") == FORMAT:
        _check_readable(snapshot, header)
    with replacing(path) as stream, PieceWriter(stream) as writer:
        stream.write(header)
        done = 0
        for name in snapshot.order:
            for part in byte_chunks(snapshot.tensors[name]):
                writer.add(name, part)
                done += len(part)
                yield done
        checksums = writer.checksums()
        stream.seek(0)
        stream.write(header_of(snapshot, checksums))


def _check_readable(snapshot: Snapshot, header: bytes) -> None:
    """Raise `InputError` if the file would exceed a limit of the format, so that no reader would open it."""
    try:
        if len(header) - PREFIX_BYTES > MAX_HEADER_BYTES:
            raise Damaged(f"its header has {len(header):,} bytes, of at most {MAX_HEADER_BYTES:,}")
        read_manifest(parse(header[PREFIX_BYTES:], len(header) + snapshot.num_bytes))
    except Damaged as error:
        raise InputError(f"This cannot be kept as a snapshot: {error}. Keep less of it, or shorter notes.") from None


class PieceWriter:
    """Writes pieces in order, while their checksums are computed and the next pieces are made: each of the three takes
    about the same time and has a thread of its own.

    At most `MAX_WAITING` batches wait. The threads end with the `with` block, in which write errors are raised.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._writing, self._summing = (ThreadPoolExecutor(1, "snapshot") for _ in range(2))
        self._stream = stream
        self._sums: dict[str, Checksum] = {}
        self._batch: list[tuple[Checksum, memoryview]] = []  # small pieces are collected into a batch
        self._batch_bytes = 0
        self._waiting: deque[tuple[Future[None], Future[None]]] = deque()

    def __enter__(self) -> PieceWriter:
        return self

    def __exit__(self, *about: object) -> None:
        for thread in (self._writing, self._summing):
            thread.shutdown(cancel_futures=True)

    def add(self, name: str, part: memoryview) -> None:
        """Add the next piece of the tensor `name`."""
        total = self._sums.setdefault(name, checksum(WRITTEN_KIND))
        self._batch.append((total, part))
        self._batch_bytes += len(part)
        if self._batch_bytes >= BATCH_BYTES:
            self._submit_batch()

    def _submit_batch(self) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._wait_for_one()
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        self._waiting.append((self._writing.submit(self._write, batch), self._summing.submit(update_checksums, batch)))

    def _wait_for_one(self) -> None:
        for future in self._waiting.popleft():
            future.result()

    def _write(self, batch: list[tuple[Checksum, memoryview]]) -> None:
        begin = self._stream.tell()
        for _, part in batch:
            self._stream.write(part)
        start_flush(self._stream, begin)

    def checksums(self) -> dict[str, str]:
        """The checksums of all tensors, after everything is written."""
        self._submit_batch()
        while self._waiting:
            self._wait_for_one()
        return {name: total.hexdigest() for name, total in self._sums.items()}


def update_checksums(batch: list[tuple[Checksum, memoryview]]) -> None:
    """Add each piece to its checksum."""
    for total, part in batch:
        total.update(part)


def checksum_of(tensor: torch.Tensor | InPieces, kind: ChecksumKind) -> str:
    """The checksum of a tensor, as hexadecimal digits. Scripts beside sessions that were written call it, too."""
    total = checksum(kind)
    for part in byte_chunks(tensor):
        total.update(part)
    return total.hexdigest()


def header_of(snapshot: Snapshot, checksums: Mapping[str, str] | None = None) -> bytes:
    """The safetensors header: its length as eight little-endian bytes, then JSON padded to a multiple of eight.

    Its length does not depend on whether the checksums are known. The header's own checksum is computed with zeros in
    its place.
    """
    known = {name: (checksums or {}).get(name, "0" * DIGITS[WRITTEN_KIND]) for name in snapshot.order}
    manifest = {**snapshot.manifest, "checksum_kind": WRITTEN_KIND, "checksums": json.dumps(known)}
    if HEADER_CHECKSUM in manifest:
        manifest[HEADER_CHECKSUM] = NO_CHECKSUM
    entries: dict[str, object] = {"__metadata__": manifest}
    offset = 0
    for name in snapshot.order:
        tensor = snapshot.tensors[name]
        dtype, shape = DTYPE_CODES[tensor.dtype], tuple(tensor.shape)
        size = num_bytes(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = padded(entries)
    if checksums is not None and HEADER_CHECKSUM in manifest:
        text = text.replace(own_checksum_field(NO_CHECKSUM), own_checksum_field(hashlib.sha256(text).hexdigest()), 1)
    return len(text).to_bytes(8, "little") + text


def own_checksum_field(digits: str) -> bytes:
    """The header's own checksum as it is written in the JSON text."""
    return f'"{HEADER_CHECKSUM}":"{digits}"'.encode()


def byte_chunks(tensor: torch.Tensor | InPieces) -> Iterator[memoryview]:
    """The bytes of a tensor in order, in pieces of bounded size, so that the whole is never copied."""
    for part in pieces(tensor):
        yield memoryview(part.view(torch.uint8).numpy().reshape(-1).data)


def pieces(tensor: torch.Tensor | InPieces, num_bytes: int = CHUNK_BYTES) -> Iterator[torch.Tensor]:
    """Consecutive parts of a tensor, contiguous and in main memory."""
    if not isinstance(tensor, torch.Tensor):
        yield from (part.cpu() for part in tensor.pieces(num_bytes))
        return
    if tensor.is_contiguous():
        flat, count = tensor.view(-1), num_bytes // tensor.element_size()
        yield from (flat[start : start + count].cpu() for start in range(0, len(flat), count))
        return
    rows = tensor.flatten(0, -3) if tensor.dim() > 2 else tensor[None]
    for matrix in rows:
        if not matrix.numel():
            continue
        row_bytes = matrix[0].numel() * matrix.element_size()
        for part in matrix.split(max(1, num_bytes // row_bytes)):
            yield part.contiguous().cpu()


# ---- extremes and previews: pictures of all tokens that can be drawn without reading the rows ------------------------

RowReader = Callable[[int, Part], torch.Tensor | Scattered]  # K or V `[1, H, S, D]` of a layer

ROWS, COLUMNS = PREVIEW_SIZE
NON_FINITE = 255
BRIGHTEST = 254


def preview_shape(layers: Sequence[LayerEntry]) -> tuple[int, ...]:
    """The shape of the preview of these layers."""
    return len(layers), 2, ROWS, COLUMNS


class Preview:
    """Grey levels `[layers, K and V, ROWS, COLUMNS]`, uint8: the mean |x| over the heads, with pooled channels as rows
    and some of the tokens as columns. 1 … 254 grow linearly up to the largest value of the layer; 0: no row, 255: not
    finite.

    Other code reads the rows of a layer through this object, so that the picture is made when the rows are in memory
    anyway.
    """

    def __init__(self, rows_of: RowReader, layers: Sequence[LayerEntry]) -> None:
        self._rows_of, self._layers = rows_of, {layer.index: number for number, layer in enumerate(layers)}
        self._missing = {(layer.index, name) for layer in layers for name in PARTS}
        self._pictures = torch.zeros(preview_shape(layers), dtype=torch.uint8)

    @torch.inference_mode()
    def rows(self, layer: int, name: Part) -> torch.Tensor | Scattered:
        """K or V of a layer, as attention reads it."""
        rows = self._rows_of(layer, name)
        if (layer, name) in self._missing:
            self._missing.remove((layer, name))
            picture = grey_levels(rows)
            self._pictures[self._layers[layer], PARTS.index(name), :, : picture.shape[1]] = picture.cpu()
        return rows

    def pictures(self) -> torch.Tensor:
        """The pictures of all layers."""
        for layer, name in sorted(self._missing):
            self.rows(layer, name)
        return self._pictures


def some_rows(rows: torch.Tensor | Scattered, which: slice | torch.Tensor) -> torch.Tensor:
    """Some of the rows `[1, H, S, D]`, as `[H, …, D]`."""
    return rows.picked(which) if not isinstance(rows, torch.Tensor) else rows[0][:, which]


def grey_levels(rows: torch.Tensor | Scattered) -> torch.Tensor:
    """The picture `[ROWS, at most COLUMNS]` of rows `[1, H, S, D]`."""
    count = rows.shape[2]
    slots = torch.linspace(0, count - 1, min(count, COLUMNS)).round().long()
    sizes = some_rows(rows, slots).float().abs().mean(0).T  # [D, columns]
    pooled = torch.nn.functional.adaptive_avg_pool1d(sizes.T[None], ROWS)[0].T
    finite = pooled.isfinite()
    largest = pooled[finite].max() if bool(finite.any()) else pooled.new_tensor(1.0)
    levels = 1 + (pooled / largest.clamp(min=1e-30) * (BRIGHTEST - 1)).nan_to_num(0.0, 0.0, 0.0).round()
    return torch.where(finite, levels, NON_FINITE).to(torch.uint8)


MAX_COLUMNS, MAX_ROWS = 256, 16
SHARE = 8  # a layer has extremes if they take at most 1 / 8 of the numbers of its rows
NUMBERS_AT_ONCE = 1 << 18

CountOf = Callable[[int, Part], LayerCount | None]


def uncounted(_layer: int, _name: Part) -> None:
    """The `CountOf` where no magnitudes are counted yet."""


def pyramid_for(num_tokens: int, layers: Sequence[LayerEntry]) -> PyramidEntry | None:
    """The resolution of the extremes. Columns are a power of two of tokens, so that they can be pooled further. None if
    no layer is large enough."""
    if not layers:  # a model with recurrent layers only
        return None
    size = 1 << max(0, -(-num_tokens // MAX_COLUMNS) - 1).bit_length()
    keys, values = (-(-max(layer.dim(name) for layer in layers) // MAX_ROWS) for name in PARTS)
    pyramid = PyramidEntry(size, keys, values)
    return pyramid if any(is_large_enough(layer, name, pyramid) for layer in layers for name in PARTS) else None


def is_large_enough(layer: LayerEntry, name: Part, pyramid: PyramidEntry) -> bool:
    """Whether the rows of a layer are consecutive, and so many that its extremes are small in comparison."""
    columns = -(-layer.num_rows // pyramid.tokens_per_column)
    cells = 2 * columns * -(-layer.dim(name) // pyramid.channels(name))
    return not layer.has_positions and cells * SHARE <= layer.num_rows * layer.dim(name)


def pyramid_of(
    rows_of: RowReader,
    layer: LayerEntry,
    pyramid: PyramidEntry | None,
    num_tokens: int,
    count_of: CountOf = uncounted,
) -> dict[str, torch.Tensor | LazyTensor]:
    """The extremes and magnitudes of a layer, if it is large enough, by full tensor name; computed when they are
    written. `count_of` returns magnitude counts that are known already, or None."""
    if pyramid is None:
        return {}
    made = SharedTensors(partial(_made, rows_of, count_of, layer, pyramid, num_tokens))
    found: dict[str, torch.Tensor | LazyTensor] = {}
    for name in PARTS:
        if is_large_enough(layer, name, pyramid):
            dtype, shape = getattr(torch, layer.dtype), pyramid.shape(layer, name, num_tokens)
            kinds = ((dtype, shape), (dtype, shape), (torch.float32, (3,)))
            for number, (what, kind) in enumerate(zip(EXTREMES, kinds, strict=True)):
                found[layer.name(f"{name}.{what}")] = LazyTensor(*kind, partial(made.pop, name, number))
    return found


Made = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class SharedTensors:
    """Tensors that are computed together, and each freed when it is taken."""

    def __init__(self, make: Callable[[Part], Made]) -> None:
        self._make = make
        self._tensors: dict[tuple[Part, int], torch.Tensor] = {}

    def pop(self, name: Part, number: int) -> torch.Tensor:
        """Return one tensor of K or V, computing all of that part if this one is not there."""
        if (name, number) not in self._tensors:
            self._tensors |= {(name, place): tensor for place, tensor in enumerate(self._make(name))}
        return self._tensors.pop((name, number))


@torch.inference_mode()
def _made(
    rows_of: RowReader,
    count_of: CountOf,
    layer: LayerEntry,
    pyramid: PyramidEntry,
    num_tokens: int,
    name: Part,
) -> Made:
    """Low, high and magnitudes for K or V of one layer."""
    rows = rows_of(layer.index, name)
    low, high = extremes_of(rows, layer, name, pyramid, num_tokens)
    count = count_of(layer.index, name)
    if count is None:
        count = LayerCount(counted(some_rows(rows, slice(None))[None], None, num_tokens), 0)
    sizes = magnitudes_of([count])
    return low, high, torch.tensor([float(part[0]) for part in (sizes.limit, sizes.largest, sizes.clipped)])


def extremes_of(
    rows: torch.Tensor | Scattered, layer: LayerEntry, name: Part, pyramid: PyramidEntry, num_tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest and largest number of each cell of rows `[1, H, S, D]`: `[H, columns, rows]`, computed a few columns
    at a time."""
    shape, size = pyramid.shape(layer, name, num_tokens), pyramid.tokens_per_column
    low, high = (torch.full(shape, torch.nan, dtype=rows.dtype) for _ in range(2))
    at_once = max(1, NUMBERS_AT_ONCE // max(1, rows.shape[1] * rows.shape[3] * size)) * size
    stop = layer.first + rows.shape[2]
    for start in range(layer.first // size * size, stop, at_once):
        begin = max(start, layer.first)
        piece = some_rows(rows, slice(begin - layer.first, min(start + at_once, stop) - layer.first))
        numbers = piece if piece.dtype == torch.float64 else piece.float()
        lows, highs, column = pooled(numbers, begin, size, pyramid.channels(name))
        columns = slice(column, column + lows.shape[1])
        low[:, columns], high[:, columns] = torch.from_numpy(lows), torch.from_numpy(highs)
    return low, high
