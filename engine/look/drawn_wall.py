"""The wall of another step from one that was drawn: columns whose rows no step changes are taken from it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from msgspec.structs import replace

from engine.geometry.dimensions import CacheGeometry
from engine.look.magnitudes import SessionMagnitudes
from engine.look.reductions import fill_cells, ms_since, per_cell
from engine.look.rows_at import RowsAt, chosen
from engine.look.states import state_pictures
from engine.look.wall import BothMagnitudes, WallCells, WallGrid, has_no_size, provenance_of_wall, wall_slice
from engine.wire.arrays import read_only_floats
from engine.wire.requests import WallRequest
from engine.wire.slices import WallSlice


@dataclass(frozen=True, eq=False)
class DrawnWall:
    """A wall that was drawn, to take columns from: of every layer, the first `num_final` rows have the same numbers at
    every later step."""

    piece: WallSlice
    num_final: int

    @classmethod
    def of(cls, piece: WallSlice, past: RowsAt) -> DrawnWall:
        return cls(piece, num_final_of(piece, past))

    def moved(
        self, request: WallRequest, past: RowsAt, geometry: CacheGeometry, magnitudes: BothMagnitudes
    ) -> WallSlice | None:
        """The wall of the same cache at another step, as `wall_slice` draws it: columns of final rows are taken from
        this one, and only the rows of the others are read. None where it has to be drawn from all rows."""
        began, piece = time.perf_counter(), self.piece
        per_column = per_cell(request.num_tokens, request.max_columns)
        before = replace(piece.request, num_tokens=request.num_tokens, previous_tokens=request.previous_tokens)
        holds_all_rows = piece.absent is None and piece.held is None and not piece.note
        first_column = min(self.num_final, num_final_of(piece, past)) // per_column
        if before != request or request.change or not holds_all_rows or per_column != piece.tokens_per_column:
            return None
        if not first_column:
            return None
        num_layers, num_heads, _, num_rows = piece.low.shape
        num_columns = -(-request.num_tokens // per_column)
        cells = WallCells.of(WallGrid(num_layers, num_heads, num_columns, num_rows, per_column, piece.dims_per_row))
        cells.low[:, :, :first_column] = piece.low[:, :, :first_column]
        cells.high[:, :, :first_column] = piece.high[:, :, :first_column]
        newest = ((n, past.newest(layer, first_column * per_column)) for n, layer in enumerate(piece.layers))
        new = [(n, chosen(rows, request.tensor)[0], rows.first) for n, rows in newest if rows is not None]
        fill_cells(cells.low, cells.high, new, per_column, piece.dims_per_row)
        return replace(
            piece,
            request=request,
            low=read_only_floats(cells.low),
            high=read_only_floats(cells.high),
            num_tokens=request.num_tokens,
            took_ms=ms_since(began),
            magnitudes=magnitudes[0],
            other_magnitudes=magnitudes[1],
            states=state_pictures(past, geometry),
            **provenance_of_wall(past, request, piece.layers),
        )


def next_wall(request: WallRequest, past: RowsAt, geometry: CacheGeometry, magnitudes: SessionMagnitudes) -> WallSlice:
    """A wall, made from the last one of the same cache where they have columns in common, and kept for the next."""
    ranges = magnitudes.of_wall(request, past, geometry)
    if has_no_size(request):
        return wall_slice(request, past, geometry, ranges)
    known = magnitudes.of_cache(request.seq_id, past.cache)
    moved = None if known.drawn is None else known.drawn.moved(request, past, geometry, ranges)
    piece = wall_slice(request, past, geometry, ranges) if moved is None else moved
    known.drawn = DrawnWall.of(piece, past)
    return piece


def num_final_of(piece: WallSlice, past: RowsAt) -> int:
    """How many rows of every layer of a wall, from the first on, have the same numbers at every later step."""
    return min((past.num_final(layer, piece.request.tensor) for layer in piece.layers), default=0)
