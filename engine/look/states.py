"""Thumbnails of the states that recurrent layers keep instead of rows."""

from __future__ import annotations

import torch

from engine.cache.contract import StateMatrix
from engine.geometry.dimensions import CacheGeometry
from engine.look.reductions import per_cell, pooled
from engine.look.source import Source
from engine.wire.pictures import StatePicture
from engine.wire.records import read_only_floats

MOST_COLUMNS, MOST_ROWS = 64, 32
MOST_MATRICES = 64  # drawn of one layer; layers with a delta rule have one for each head


def state_pictures(source: Source, geometry: CacheGeometry) -> tuple[StatePicture, ...]:
    """The states of all layers that have one. Empty for an earlier step: earlier states are not kept."""
    layers = [layer.index for layer in geometry.layers if layer.kind == "linear" or layer.state_elements]
    return tuple(state_picture(index, matrix) for index in layers for matrix in source.states(index)[:MOST_MATRICES])


def landscape(values: torch.Tensor) -> torch.Tensor:
    """A matrix as `[columns, rows]` of a picture, with its longer side horizontal."""
    values = values.float()
    return values.mT if values.shape[0] < values.shape[1] else values


def state_picture(layer: int, matrix: StateMatrix) -> StatePicture:
    """The thumbnail of one part of a state."""
    values = landscape(matrix.values)
    columns, rows = values.shape
    low, high, _ = pooled(values[None], 0, per_cell(columns, MOST_COLUMNS), per_cell(rows, MOST_ROWS))
    largest = float(values.nan_to_num(0.0, 0.0, 0.0).abs().max()) if values.numel() else 0.0
    dtype = str(matrix.values.dtype).removeprefix("torch.")
    return StatePicture(
        layer, matrix.name, matrix.shape, dtype, read_only_floats(low[0]), read_only_floats(high[0]), largest
    )
