"""What a step changed in a picture that is already on the screen: the columns from the first new row on.

Only for caches whose rows stay as they were written. Cells come from the same reductions as those of a whole slice, so
that a picture put together from updates is the slice that could be taken in its place.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import torch

from engine.cache.contract import Pair
from engine.look.magnitude_counts import LayerCount
from engine.look.magnitudes import magnitudes_of, of_pair, part_of
from engine.look.probe import frozen
from engine.look.reductions import fill_cells, frozen_ints, pooled, since
from engine.look.tile_statistics import TileStatistics
from engine.wire.commands import HeadRequest, TensorName, WallRequest
from engine.wire.slices import HeadSlice, HeadUpdate, WallSlice, WallUpdate


def per_column(num_positions: int, max_columns: int) -> int:
    """How many tokens share a column where so many positions are to fit into so many columns."""
    return max(1, -(-max(1, num_positions) // max(1, max_columns)))


def wall_update(
    request: WallRequest,
    piece: WallSlice,
    num_before: int,
    rows: Mapping[int, Pair],
    counts: Mapping[TensorName, Mapping[int, LayerCount]],
) -> WallUpdate:
    """The columns of a wall `piece` that positions from `num_before` on are in. `rows` by layer are K and V
    `[H_kv, T, D]` from the first position of the first of them on; `counts` are those of all rows."""
    began = time.perf_counter()
    size = piece.tokens_per_column
    first_column = num_before // size
    num_layers, num_heads, _, num_rows = piece.low.shape
    shape = (num_layers, num_heads, -(-request.num_tokens // size) - first_column, num_rows)
    low, high = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
    new = [(n, of_pair(rows[layer], request.tensor), first_column * size) for n, layer in enumerate(piece.layers)]
    fill_cells(low, high, new, size, piece.dims_per_row, first_column)
    other: TensorName = "values" if request.tensor == "keys" else "keys"
    both = magnitudes_of([counts[name][i] for name in (request.tensor, other) for i in piece.layers])
    drawn, not_drawn = part_of(both, slice(num_layers)), part_of(both, slice(num_layers, None))
    return WallUpdate(request, first_column, frozen(low), frozen(high), drawn, not_drawn, since(began))


def head_update(
    request: HeadRequest,
    piece: HeadSlice,
    num_before: int,
    tile: torch.Tensor,
    statistics: TileStatistics,
    count: LayerCount | None,
) -> HeadUpdate:
    """The columns of a head `piece` that positions from `num_before` on are in. `tile` `[T, D]` are its rows from the
    first position of the first of them on; `statistics` are those of all its rows."""
    began = time.perf_counter()
    size, had = piece.tokens_per_column, num_before - request.start
    first_column, low, high = -(-had // size), *[np.empty((1, 0, piece.low.shape[1]), np.float32)] * 2
    if tile.shape[0]:
        first_column = had // size
        low, high, _ = pooled(tile[None], 0, size, 1)
    return HeadUpdate(
        request=request,
        first_column=first_column,
        low=frozen(low[0]),
        high=frozen(high[0]),
        counts=frozen_ints(statistics.counts),
        edges=frozen(statistics.edges),
        limit=statistics.limit,
        lowest=statistics.lowest,
        highest=statistics.highest,
        num_nan=statistics.num_nan,
        num_inf=statistics.num_inf,
        magnitudes=magnitudes_of([count]) if count is not None else None,
        took_ms=since(began),
    )
