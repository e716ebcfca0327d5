"""Thumbnails of layers with a recurrent state of fixed size, in place of rows or in addition to them."""

from __future__ import annotations

import numpy as np

from app.draw.colormap import ColorScale, larger, packed
from app.draw.format import brief
from app.draw.ghost import Pixels
from app.draw.resample import source_cells
from app.panels.wall.draw import Thumbnail, WallLayout
from engine.wire.slices import StatePicture, WallSlice


def state_at(piece: WallSlice, tile: Thumbnail) -> StatePicture | None:
    """The state that a thumbnail shows; None if it shows rows."""
    mine = [state for state in piece.states if state.layer == tile.layer]
    number = tile.kv_head - num_heads(piece, tile.layer)
    return mine[number] if 0 <= number < len(mine) else None


def num_heads(piece: WallSlice, layer: int) -> int:
    """How many heads of a layer have rows; its states are numbered after them."""
    return piece.heads[piece.layers.index(layer)] if layer in piece.layers else 0


def is_beside_rows(piece: WallSlice | None, tile: Thumbnail) -> bool:
    """Whether a thumbnail shows the state of a layer that also has rows: it is not a head that can be selected."""
    return piece is not None and tile.layer in piece.layers and tile.kv_head >= num_heads(piece, tile.layer)


def state_words(state: StatePicture) -> str:
    """`state, fixed size · recurrence [1, 128, 8] float32 · max 3.21`."""
    return f"state, fixed size · {state.name} {list(state.shape)} {state.dtype} · max {brief(state.largest)}"


def paint(picture: Pixels, layout: WallLayout, piece: WallSlice, scale: ColorScale) -> None:
    """Paint the states into their thumbnails, each with a colour range of its own."""
    for tile in layout.tiles if piece.states else ():
        state = state_at(piece, tile)
        if state is not None:
            values = larger(state.low, state.high) / (state.largest or 1.0)
            columns, rows = (source_cells(n, m) for n, m in zip(values.shape, (tile.width, tile.height), strict=True))
            shown = values[columns][:, rows].T
            picture[tile.y : tile.y + tile.height, tile.x : tile.x + tile.width] = np.take(
                packed(scale.table), scale.index(shown, 1.0)
            )
