"""A picture small enough to be shown before anything else of a snapshot is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engine.cache.contract import HeldRows
from engine.snapshot.format import PREVIEW_SIZE, LayerEntry

ROWS, COLUMNS = PREVIEW_SIZE
NON_FINITE = 255
BRIGHTEST = 254


def preview_shape(layers: Sequence[LayerEntry]) -> tuple[int, ...]:
    """Of the preview of so many layers."""
    return len(layers), 2, ROWS, COLUMNS


class Preview:
    """Grey levels `[layers, K and V, ROWS, COLUMNS]`, uint8: the mean |x| over the heads, channels pooled downwards,
    some tokens across. 1 … 254 go linearly to the largest of the layer; 0: no row is there, 255: not finite.

    Whoever needs the rows of a layer asks here for them, so that its picture is made when they are at hand.
    """

    def __init__(self, rows_of: Callable[[int], HeldRows | None], layers: Sequence[LayerEntry]) -> None:
        self._rows_of, self._layers = rows_of, {layer.index: number for number, layer in enumerate(layers)}
        self._missing = {layer.index: layer.num_rows for layer in layers}
        self._pictures = torch.zeros(preview_shape(layers), dtype=torch.uint8)

    @torch.inference_mode()
    def rows(self, layer: int) -> HeldRows | None:
        """The rows of a layer, as attention reads them."""
        held, num_rows = self._rows_of(layer), self._missing.pop(layer, None)
        if held is not None and num_rows is not None:
            for which, rows in enumerate((held.keys, held.values)):
                picture = grey_levels(rows[0, :, :num_rows])
                self._pictures[self._layers[layer], which, :, : picture.shape[1]] = picture.cpu()
        return held

    def made(self) -> torch.Tensor:
        """The pictures of all layers."""
        for layer in tuple(self._missing):
            self.rows(layer)
        return self._pictures


def grey_levels(rows: torch.Tensor) -> torch.Tensor:
    """One picture `[ROWS, at most COLUMNS]` of rows `[H, S, D]`."""
    count = rows.shape[1]
    slots = torch.linspace(0, count - 1, min(count, COLUMNS), device=rows.device).round().long()
    sizes = rows.index_select(1, slots).float().abs().mean(0).T  # [D, columns]
    pooled = torch.nn.functional.adaptive_avg_pool1d(sizes.T[None], ROWS)[0].T
    finite = pooled.isfinite()
    largest = pooled[finite].max() if bool(finite.any()) else pooled.new_tensor(1.0)
    levels = 1 + (pooled / largest.clamp(min=1e-30) * (BRIGHTEST - 1)).nan_to_num(0.0, 0.0, 0.0).round()
    return torch.where(finite, levels, NON_FINITE).to(torch.uint8)
