"""The wall of an opened snapshot, layer by layer; for large layers it is drawn from the stored extremes."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from engine.cache.contract import HeldRows
from engine.geometry.dimensions import CacheGeometry
from engine.look.reductions import per_cell
from engine.look.rows_at import chosen, cut
from engine.look.wall import BothMagnitudes, WallCells, WallGrid, fill, has_no_size, held_layers, wall_of
from engine.opened.rows import FileRows, FileRowsAt, RowQuery
from engine.snapshot.format import PyramidEntry
from engine.wire.records import Floats
from engine.wire.requests import WallRequest
from engine.wire.slices import WallSlice

EXACT_NUMBERS = 1 << 24  # a larger tensor is drawn from the extremes even if these are coarser than requested


def file_wall(request: WallRequest, past: FileRowsAt, geometry: CacheGeometry, magnitudes: BothMagnitudes) -> WallSlice:
    """Thumbnails of every layer and head. Rows are not read if extremes can be used instead."""
    began = time.perf_counter()
    held = held_layers(past.only(RowQuery(())), geometry)  # reads shapes and positions only
    pyramid = usable_pyramid(request, past.source)
    grid = WallGrid.of(held, request) if pyramid is None else coarse_grid(held, request, pyramid)
    cells = WallCells.of(grid)
    for number, layer in enumerate(held if grid.num_columns or request.change else ()):
        if pyramid is None or not fill_from_extremes(cells.layer(number), layer, request, past.source, pyramid):
            fill_from_rows(cells.layer(number), layer, request, past)
    return wall_of(cells, held, request, past, geometry, magnitudes, began)


def usable_pyramid(request: WallRequest, source: FileRows) -> PyramidEntry | None:
    """The stored extremes, if they are fine enough for the request, or if there are too many rows to be read; else
    None."""
    pyramid = source.file.manifest.pyramid
    if pyramid is None or request.change or has_no_size(request) or request.num_tokens < source.num_tokens:
        return None
    dims = [entry.dim(request.tensor) for entry in source.file.layers]
    per_column, per_row = per_cell(request.num_tokens, request.max_columns), per_cell(max(dims), request.max_rows)
    is_fine = pyramid.tokens_per_column <= per_column and pyramid.channels(request.tensor) <= per_row
    return pyramid if is_fine or num_numbers(source, request) > EXACT_NUMBERS else None


def num_numbers(source: FileRows, request: WallRequest) -> int:
    """How many numbers K, or V, has in all layers with extremes."""
    layers = [entry for entry in source.file.layers if entry.name(f"{request.tensor}.low") in source.file]
    return sum(len(entry.heads) * entry.num_rows * entry.dim(request.tensor) for entry in layers)


def coarse_grid(held: Mapping[int, HeldRows], request: WallRequest, pyramid: PyramidEntry) -> WallGrid:
    """The finest grid within the request whose cells consist of whole cells of the extremes."""
    fine = WallGrid.of(held, request)
    size, channels = pyramid.tokens_per_column, pyramid.channels(request.tensor)
    per_column, per_row = -(-fine.per_column // size) * size, -(-fine.per_row // channels) * channels
    dims = max(chosen(rows, request.tensor).shape[3] for rows in held.values())
    columns, rows = -(-request.num_tokens // per_column), -(-dims // per_row)
    return WallGrid(fine.num_layers, fine.num_heads, columns, rows, per_column, per_row)


def fill_from_extremes(
    cells: WallCells, layer: int, request: WallRequest, source: FileRows, pyramid: PyramidEntry
) -> bool:
    """Fill the cells of one layer from its extremes; returns False if it has none, or not of all heads."""
    entry, file = source.entry(layer), source.file
    if entry is None or len(entry.heads) < entry.num_kv_heads or entry.name(f"{request.tensor}.low") not in file:
        return False
    grid = cells.grid
    columns, rows = grid.per_column // pyramid.tokens_per_column, grid.per_row // pyramid.channels(request.tensor)
    for name, into in (("low", cells.low), ("high", cells.high)):
        numbers = file.numbers(entry.name(f"{request.tensor}.{name}"))
        first_column = entry.first // pyramid.tokens_per_column
        stop_column = -(-(entry.first + entry.num_rows) // pyramid.tokens_per_column)
        found = merged(numbers, range(first_column, stop_column), columns, rows, is_low=name == "low")
        into[0, : found.shape[0], : found.shape[1], : found.shape[2]] = found
    return True


def merged(numbers: Floats, held: range, columns: int, rows: int, *, is_low: bool) -> Floats:
    """Merge extremes into `[H, columns, rows]`, `columns` × `rows` cells into each; NaN takes precedence. Only the
    columns in `held` have rows; other columns that are merged with the first or last of them are ignored."""
    smallest, found = np.minimum if is_low else np.maximum, numbers.copy()
    found[:, held.start // columns * columns : held.start] = found[:, held.start : held.start + 1]
    found[:, held.stop : -(-held.stop // columns) * columns] = found[:, held.stop - 1 : held.stop]
    for axis, count in ((1, columns), (2, rows)):
        if count > 1:
            found = smallest.reduceat(found, np.arange(0, found.shape[axis], count), axis=axis)
    return found


def fill_from_rows(cells: WallCells, layer: int, request: WallRequest, past: FileRowsAt) -> None:
    """Fill the cells of one layer from its rows, of which few are in memory at a time."""
    if request.change:
        new = range(request.previous_tokens, request.num_tokens)
        part = past.only(RowQuery((request.tensor,), positions=new, keeps_length=True))
        rows = part.rows(layer)
        if rows is not None:
            fill(cells, {layer: rows}, request, part)
        return
    for piece in past.source.pieces(layer, request.tensor, cells.grid.per_column):
        if (rows := cut(piece, request.num_tokens)) is not None:
            fill(cells, {layer: rows}, request, past)
