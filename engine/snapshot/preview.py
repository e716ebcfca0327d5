"""A small picture of a snapshot, shown before anything else of it is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engine.cache.stored import RowsInPieces
from engine.snapshot.format import PARTS, PREVIEW_SIZE, LayerEntry
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
