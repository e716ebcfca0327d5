"""Updates of a picture that is already on the screen: only the cells of rows that steps wrote, rewrote or dropped.

Cells come from the same reductions as those of a whole slice, so that a picture assembled from updates equals the slice
that could be taken instead.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from msgspec.structs import replace

from engine.cache.contract import HeldRows, Pair
from engine.cache.row_delta import NO_ROWS, RowDelta
from engine.geometry.dimensions import CacheGeometry
from engine.look.magnitude_counts import LayerCount
from engine.look.magnitudes import compute_ranges, magnitudes_of, of_pair
from engine.look.reductions import (
    cells_of,
    fill_cells,
    ms_since,
    num_positions_of,
    per_cell,
    pooled,
    rows_in,
    touched,
)
from engine.look.rows_at import RowsAt, holders, rewrites
from engine.look.slices import Tile, numbers_of
from engine.look.states import state_pictures
from engine.look.tile_statistics import TileStatistics
from engine.look.wall import (
    BothMagnitudes,
    WallGrid,
    has_no_size,
    held_layers,
    held_positions,
    missing_from,
    note_of,
    rows_before,
    wall_cells,
)
from engine.wire.arrays import read_only_floats, read_only_ints
from engine.wire.records import Ints
from engine.wire.requests import HeadRequest, TensorName, WallRequest
from engine.wire.slices import CellUpdate, HeadSlice, Magnitudes, WallSlice

# largest share of changed cells for which an update is sent: beyond it, the cells' places make the whole wall cheaper
WORTH_UPDATING = 0.5


def appended_wall(
    request: WallRequest,
    piece: WallSlice,
    first: int,
    rows: Mapping[int, Pair],
    counts: Mapping[TensorName, Mapping[int, LayerCount]],
) -> CellUpdate:
    """The update of a wall `piece` to which rows were appended and nothing else happened: its columns from that of
    position `first` on, which is the first position of its column. `rows` by layer: K and V `[H_kv, T, D]` from there
    on. `counts`: histograms of all rows, first those of the drawn tensor; empty where the magnitudes shown are to
    stay."""
    began = time.perf_counter()
    size, num_layers, num_heads = piece.tokens_per_column, len(piece.layers), max(piece.heads)
    first_column, num_columns = first // size, -(-request.num_tokens // size)
    shape = (num_layers, num_heads, num_columns - first_column, piece.low.shape[-1])
    low, high = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
    tensors = [of_pair(rows[layer], request.tensor) for layer in piece.layers]
    if request.change:  # rows of earlier steps are unchanged, and drawn as zero
        tensors = [tensor.clone() for tensor in tensors]
        for tensor in tensors:
            tensor[:, : max(0, request.previous_tokens - first)] = 0
    new = [(n, tensor, first) for n, tensor in enumerate(tensors)]
    fill_cells(low, high, new, size, piece.dims_per_row, first_column)
    places = np.indices(shape[:3]).reshape(3, -1)
    places[2] += first_column
    compute_ranges(count for of_tensor in counts.values() for count in of_tensor.values())  # K and V at once
    ranges = [magnitudes_of([counts[tensor][layer] for layer in piece.layers]) for tensor in counts]
    shown = replace(
        piece,
        request=request,
        low=read_only_floats(low.reshape(-1, shape[3])),
        high=read_only_floats(high.reshape(-1, shape[3])),
        num_tokens=request.num_tokens,
        took_ms=ms_since(began),
        magnitudes=ranges[0] if ranges else piece.magnitudes,
        other_magnitudes=ranges[1] if len(ranges) > 1 else None if ranges else piece.other_magnitudes,
    )
    return CellUpdate(shown, read_only_ints(places), num_columns)


def changed_wall(
    request: WallRequest,
    piece: WallSlice,
    deltas: Sequence[RowDelta],
    past: RowsAt,
    geometry: CacheGeometry,
    magnitudes: BothMagnitudes,
) -> CellUpdate | None:
    """The update of a wall `piece` after steps that did `deltas` to the rows of each layer; None where the wall is to
    be sent whole. For a picture of changes, the deltas begin with the step that `piece` shows, because its rows are now
    drawn as unchanged."""
    began = time.perf_counter()
    held = held_layers(past, geometry)
    is_scattered = any(rows.positions is not None for rows in held.values())
    grid, pooling = WallGrid.of(held, request), (piece.tokens_per_column, piece.dims_per_row)
    if tuple(held) != piece.layers or is_scattered != (piece.absent is not None):
        return None
    if (grid.per_column, grid.per_row) != pooling and not has_no_size(request):
        return None
    places = touched_places(request, deltas, held, grid, tells_rewritten=not request.change or rewrites(past.cache))
    if places.shape[1] > WORTH_UPDATING * np.prod(grid.shape[:3]):
        return None
    low = np.full((places.shape[1], grid.num_rows), np.nan, np.float32)
    high, absent = low.copy(), np.zeros(places.shape[1], np.int64)
    steps = past.changes(request.previous_tokens)
    for n, (layer, rows) in enumerate(held.items()):
        mine = np.flatnonzero(places[0] == n)
        if not mine.size:  # nothing to draw, and a wall without any size has no cell to hold it
            continue
        is_touched = np.zeros((rows.keys.shape[1], grid.num_columns), bool)
        is_touched[places[1, mine], places[2, mine]] = True
        older = rows_before(past, layer, request) if request.change else None
        found = wall_cells(rows, is_touched, request, grid, steps[layer], older)
        low[mine, : found.low.shape[1]], high[mine, : found.low.shape[1]] = found.low, found.high
        if rows.positions is not None:
            absent[mine] = missing_from(found.held, places[2, mine], request, grid)
    holders_at = touched_positions(deltas, request.num_tokens) if is_scattered else None
    shown = replace(
        piece,
        request=request,
        low=read_only_floats(low),
        high=read_only_floats(high),
        num_tokens=request.num_tokens,
        tokens_per_column=grid.per_column,
        note=note_of(held, request, past, geometry),
        absent=read_only_ints(absent) if is_scattered else None,
        holders=None if holders_at is None else holders(held.values(), holders_at),
        magnitudes=magnitudes[0],
        other_magnitudes=magnitudes[1],
        states=() if has_no_size(request) else state_pictures(past, geometry),
        held=held_positions(held, request.num_tokens),
        took_ms=ms_since(began),
    )
    return CellUpdate(shown, places, grid.num_columns, holders_at=holders_at)


def touched_places(
    request: WallRequest,
    deltas: Sequence[RowDelta],
    held: Mapping[int, HeldRows],
    grid: WallGrid,
    *,
    tells_rewritten: bool,
) -> Ints:
    """The cells of a wall `[3, N]` (layer, head, column) in which any row was written, rewritten or dropped."""
    found = []
    for n, (layer, rows) in enumerate(held.items()):
        delta = deltas[layer]
        rewritten = delta.rewritten(request.tensor) if tells_rewritten else NO_ROWS
        shape = rows.keys.shape[1], grid.num_columns
        heads, columns = np.nonzero(touched(delta, rewritten, shape, 0, grid.per_column))
        found.append(np.stack([np.full_like(heads, n), heads, columns]))
    return read_only_ints(np.concatenate(found, 1) if found else np.zeros((3, 0)))


def touched_positions(deltas: Sequence[RowDelta], num_tokens: int) -> Ints:
    """The positions of rows that were written or dropped, in any layer."""
    runs = {run for delta in deltas for run in (delta.written, delta.left_window)}
    evicted = {id(went): went for delta in deltas for went in delta.evicted}
    parts = [np.arange(run.start, run.stop) for run in runs] + [w.cpu().numpy().ravel() for w in evicted.values()]
    positions = np.unique(np.concatenate(parts))
    return read_only_ints(positions[positions < num_tokens])


def appended_head(
    request: HeadRequest,
    piece: HeadSlice,
    num_before: int,
    tile: torch.Tensor,
    statistics: TileStatistics | None,
    count: LayerCount | None,
) -> CellUpdate:
    """The update of a head `piece` to which rows were appended and nothing else happened: its columns from that of
    position `num_before` on. `tile` `[T, D]`: its rows from the first position of the first of these columns on.
    `statistics` of all its rows and `count` of its layer; both None where the numbers shown are to stay."""
    began = time.perf_counter()
    size, had = piece.tokens_per_column, num_before - request.start
    first_column, low, high = -(-had // size), *[np.empty((1, 0, piece.low.shape[1]), np.float32)] * 2
    if tile.shape[0]:
        first_column = had // size
        low, high, _ = pooled(tile[None], 0, size, 1)
    num_columns = first_column + low.shape[1]
    shown = replace(
        piece,
        request=request,
        low=read_only_floats(low[0]),
        high=read_only_floats(high[0]),
        positions=piece.positions[:1],
        magnitudes=magnitudes_of([count]) if count is not None else piece.magnitudes,
        took_ms=ms_since(began),
        **({} if statistics is None else numbers_of(statistics)),
    )
    return CellUpdate(shown, read_only_ints(np.arange(first_column, num_columns)[None]), num_columns)


def changed_head(
    request: HeadRequest,
    piece: HeadSlice,
    delta: RowDelta,
    past: RowsAt,
    magnitudes: Magnitudes | None,
    *,
    is_counted: bool,
) -> CellUpdate | None:
    """The update of a head `piece` after steps that did `delta` to the rows of its layer; None where it is to be sent
    whole. Columns that the picture has scrolled past are removed at its left end. Its statistics are updated only if
    `is_counted`."""
    if not piece.positions.size:
        return None  # none of its rows was held: there is no column to begin at
    began = time.perf_counter()
    tile, size = Tile.of(request, past), piece.tokens_per_column
    per_column, count = per_cell(tile.num_positions, request.max_columns), tile.num_positions
    num_removed, rest = divmod(tile.first - int(piece.positions[0]), size)
    is_scattered = tile.positions is not None
    is_empty = not count if is_scattered else not tile.values.numel()
    if is_empty or per_column != size or rest or num_removed < 0 or is_scattered != (piece.absent is not None):
        return None
    num_columns = -(-count // size)
    evicted = tuple(went[min(request.kv_head, len(went) - 1)][None] for went in delta.evicted)
    delta = dataclasses.replace(delta, evicted=evicted)
    places = tile.positions if is_scattered else torch.arange(tile.first, tile.first + count, device=tile.values.device)
    assert places is not None
    is_touched = touched(delta, delta.rewritten(request.tensor), (1, num_columns), tile.first, size)
    found = rows_in(places[None] - tile.first, is_touched, size, count)
    columns = np.flatnonzero(is_touched[0])
    cells = cells_of(tile.values[found.slots], found.cells, len(columns), 1)
    shown = replace(
        piece,
        request=request,
        low=read_only_floats(cells.low),
        high=read_only_floats(cells.high),
        positions=read_only_ints(np.array([tile.first])),
        absent=read_only_ints(num_positions_of(columns, size, count) - cells.held) if is_scattered else None,
        magnitudes=magnitudes,
        took_ms=ms_since(began),
        **(numbers_of(TileStatistics(tile.values)) if is_counted else {}),
    )
    return CellUpdate(shown, read_only_ints(columns[None]), num_columns, num_removed)
