"""Thumbnails of the states that recurrent layers keep instead of rows."""

from __future__ import annotations

import torch

from engine.cache.contract import StateMatrix
from engine.geometry.dimensions import CacheGeometry
from engine.look.reductions import per_cell, pooled
from engine.look.rows_at import RowsAt
from engine.wire.arrays import read_only_floats
from engine.wire.slices import StatePicture

MOST_COLUMNS, MOST_ROWS = 64, 32
MOST_MATRICES = 64  # drawn of one layer; layers with a delta rule have one for each head


def state_pictures(past: RowsAt, geometry: CacheGeometry) -> tuple[StatePicture, ...]:
    """The states of all layers that have one. Empty for an earlier step: earlier states are not kept."""
    if not is_now(past):
        return ()
    layers = [layer.index for layer in geometry.layers if layer.kind == "linear" or layer.state_elements]
    return tuple(
        state_picture(index, matrix) for index in layers for matrix in past.cache.states(index)[:MOST_MATRICES]
    )


def is_now(past: RowsAt) -> bool:
    """Whether these are the present rows, so that the present states belong to them."""
    return past.half is None and past.num_tokens >= past.cache.num_tokens


def state_of(past: RowsAt, layer: int, number: int) -> StateMatrix | None:
    """One part of a layer's state; None for an earlier step, or where there are fewer parts."""
    found = past.cache.states(layer) if is_now(past) else ()
    return found[number] if number < len(found) else None


@torch.inference_mode()
def landscape(values: torch.Tensor) -> torch.Tensor:
    """A matrix as `[columns, rows]` of a picture, with its longer side horizontal."""
    values = values.float()
    return values.mT if values.shape[0] < values.shape[1] else values


@torch.inference_mode()
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
