"""Magnitudes of the numbers in an opened snapshot: those stored in the file, or counted from its rows piece by
piece."""

from __future__ import annotations

import math

import numpy as np
import torch

from engine.geometry.dimensions import CacheGeometry
from engine.look.magnitude_counts import LayerCount, counted, counts_of_rows
from engine.look.magnitudes import magnitudes_of
from engine.look.rows_at import chosen, cut
from engine.look.wall import BothMagnitudes, has_no_size
from engine.opened.rows import FileRows, RowQuery, is_run
from engine.wire.arrays import read_only_floats
from engine.wire.requests import HeadRequest, TensorName, WallRequest
from engine.wire.slices import Magnitudes

COUNTED_TOGETHER = 1 << 20  # most numbers of a small layer, and of all layers that are counted at once
COUNTED_NUMBERS = 1 << 20  # a larger tensor is not counted if the picture shows the other one


class FileMagnitudes:
    """Magnitudes of the layers of a file. Magnitudes that the file stores are those of all rows, even if an earlier
    step is shown."""

    def __init__(self, source: FileRows, geometry: CacheGeometry) -> None:
        self._source, self._layers = source, [layer.index for layer in geometry.attention_layers]
        self._counts: dict[tuple[TensorName, int, int], LayerCount | None] = {}

    def of_wall(self, request: WallRequest) -> BothMagnitudes:
        """Magnitudes of the tensor that is shown, and of the other one if counting them is cheap."""
        if has_no_size(request):
            return None, None
        other: TensorName = "values" if request.tensor == "keys" else "keys"
        is_cheap = self._num_uncounted(other) <= COUNTED_NUMBERS
        mine = self._joined(request.tensor, self._layers, request.num_tokens)
        return mine, self._joined(other, self._layers, request.num_tokens) if is_cheap else None

    def of_head(self, request: HeadRequest) -> Magnitudes | None:
        """Magnitudes of the layer of a head; None if it holds no rows."""
        return self._joined(request.tensor, [request.layer], request.num_tokens)

    def counts(self, tensor: TensorName, num_tokens: int) -> dict[int, LayerCount]:
        """The counts of every layer that has rows, for the search for outliers."""
        found = {layer: self._counted(tensor, layer, num_tokens) for layer in self._layers}
        return {layer: count for layer, count in found.items() if count is not None}

    def _count_together(self, tensor: TensorName, layers: list[int], num_tokens: int) -> None:
        """Count small layers of the same shape in one call, since a call for each would take longer than the
        counting."""
        forms: dict[tuple[int, ...], list[tuple[int, torch.Tensor]]] = {}
        for layer in layers:
            entry = self._source.entry(layer)
            is_known = (tensor, layer, num_tokens) in self._counts or self._told(tensor, layer) is not None
            if entry is None or is_known or not is_run(entry):
                continue
            if len(entry.heads) * entry.num_rows * entry.dim(tensor) <= COUNTED_TOGETHER:
                rows = cut(self._source.read(layer, RowQuery((tensor,))), num_tokens)
                if rows is not None:
                    numbers = chosen(rows, tensor)[0]
                    forms.setdefault(tuple(numbers.shape), []).append((layer, numbers))
        for shape, found in forms.items():
            at_once = max(1, COUNTED_TOGETHER // math.prod(shape))
            for start in range(0, len(found), at_once):
                part = found[start : start + at_once]
                counts, peaks = counts_of_rows([numbers for _, numbers in part])
                for (layer, _), count, peak in zip(part, counts, peaks, strict=True):
                    self._counts[tensor, layer, num_tokens] = LayerCount(count, peak, shape[1])

    def _joined(self, tensor: TensorName, layers: list[int], num_tokens: int) -> Magnitudes | None:
        self._count_together(tensor, layers, num_tokens)
        found = [told for layer in layers if (told := self._of(tensor, layer, num_tokens)) is not None]
        if not found:
            return None
        parts = ([getattr(told, name) for told in found] for name in ("limit", "largest", "clipped"))
        return Magnitudes(*(read_only_floats(np.concatenate(part)) for part in parts))

    def _of(self, tensor: TensorName, layer: int, num_tokens: int) -> Magnitudes | None:
        told = self._told(tensor, layer)
        if told is not None:
            return Magnitudes(*(read_only_floats(told[part : part + 1]) for part in range(3)))
        count = self._counted(tensor, layer, num_tokens)
        return None if count is None else magnitudes_of([count])

    def _told(self, tensor: TensorName, layer: int) -> np.ndarray | None:
        entry, file = self._source.entry(layer), self._source.file
        name = "" if entry is None else entry.name(f"{tensor}.magnitudes")
        return file.numbers(name) if name in file else None

    def _counted(self, tensor: TensorName, layer: int, num_tokens: int) -> LayerCount | None:
        """The counts of a layer, computed once."""
        key = tensor, layer, num_tokens
        if key not in self._counts:
            self._counts[key] = self._count(tensor, layer, num_tokens)
        return self._counts[key]

    def _count(self, tensor: TensorName, layer: int, num_tokens: int) -> LayerCount | None:
        found: LayerCount | None = None
        if self._source.entry(layer) is None:
            return None
        for piece in self._source.pieces(layer, tensor, 1):
            rows = cut(piece, num_tokens)
            for _, count in counted([(layer, rows, chosen(rows, tensor), 0)], num_tokens) if rows is not None else ():
                if found is None:
                    found = count
                else:
                    found.add(count)
        return found

    def _num_uncounted(self, tensor: TensorName) -> int:
        """How many numbers are in layers whose magnitudes the file does not store."""
        entries = [entry for entry in self._source.file.layers if self._told(tensor, entry.index) is None]
        return sum(len(entry.heads) * entry.num_rows * entry.dim(tensor) for entry in entries)
