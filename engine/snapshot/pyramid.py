"""Extremes of cells that are stored with the rows of large layers, so that a picture of all tokens can be drawn without
reading the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from engine.cache.contract import RowsInPieces
from engine.look.magnitudes import LayerCount, counted, magnitudes_of
from engine.look.reductions import pooled
from engine.snapshot.format import EXTREMES, PARTS, PREVIEW_SIZE, LayerEntry, PyramidEntry
from engine.snapshot.write import LazyTensor
from engine.spec.codec import Part

RowReader = Callable[[int, Part], torch.Tensor | RowsInPieces]  # K or V `[1, H, S, D]` of a layer

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
    def rows(self, layer: int, name: Part) -> torch.Tensor | RowsInPieces:
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


def some_rows(rows: torch.Tensor | RowsInPieces, which: slice | torch.Tensor) -> torch.Tensor:
    """Some of the rows `[1, H, S, D]`, as `[H, …, D]`."""
    return rows.picked(which) if not isinstance(rows, torch.Tensor) else rows[0][:, which]


def grey_levels(rows: torch.Tensor | RowsInPieces) -> torch.Tensor:
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
    count_of: CountOf = lambda index, name: None,
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
    if len(layer.heads) < rows.shape[1]:
        rows = rows.of_heads(layer.heads) if not isinstance(rows, torch.Tensor) else rows[:, list(layer.heads)]
    low, high = extremes_of(rows, layer, name, pyramid, num_tokens)
    count = count_of(layer.index, name)
    if count is None:
        count = LayerCount(counted(some_rows(rows, slice(None))[None], None, num_tokens), 0)
    told = magnitudes_of([count])
    return low, high, torch.tensor([float(part[0]) for part in (told.limit, told.largest, told.clipped)])


def extremes_of(
    rows: torch.Tensor | RowsInPieces, layer: LayerEntry, name: Part, pyramid: PyramidEntry, num_tokens: int
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
