"""The wall: thumbnails of K or V of every layer and head, or of what a step changed in them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from engine.cache.contract import HeldRows
from engine.cache.row_delta import RowDelta
from engine.geometry.dimensions import CacheGeometry
from engine.look.reductions import (
    CellExtremes,
    Flags,
    cells_of,
    fill_cells,
    ms_since,
    num_positions_of,
    per_cell,
    rows_in,
    scattered,
    touched,
)
from engine.look.rows_at import RowsAt, chosen, holders, places_of, rewrites, slots_of
from engine.look.states import state_pictures
from engine.wire.arrays import read_only_floats, read_only_ints
from engine.wire.records import Floats, Ints
from engine.wire.requests import WallRequest
from engine.wire.slices import Magnitudes, WallSlice

BothMagnitudes = tuple[Magnitudes | None, Magnitudes | None]


def held_layers(past: RowsAt, geometry: CacheGeometry) -> dict[int, HeldRows]:
    """The rows of every layer that holds any."""
    return {layer.index: rows for layer in geometry.attention_layers if (rows := past.rows(layer.index)) is not None}


@dataclass(frozen=True)
class WallGrid:
    """The grid of a wall: the number of its cells `[L, H_kv, columns, rows]`, and how many tokens and dimensions are in
    each."""

    num_layers: int
    num_heads: int
    num_columns: int
    num_rows: int
    per_column: int
    per_row: int

    @classmethod
    def of(cls, held: Mapping[int, HeldRows], request: WallRequest) -> WallGrid:
        """The grid for a request. A wall without size has no cells: it is requested only to learn which rows are
        held."""
        dims = max((chosen(rows, request.tensor).shape[3] for rows in held.values()), default=1)
        heads = max((rows.keys.shape[1] for rows in held.values()), default=0)
        tokens = max(1, request.num_tokens)
        per_column, per_row = per_cell(tokens, request.max_columns), per_cell(dims, request.max_rows)
        if has_no_size(request):
            return cls(len(held), heads, 0, 0, per_column, per_row)
        return cls(len(held), heads, -(-tokens // per_column), -(-dims // per_row), per_column, per_row)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.num_layers, self.num_heads, self.num_columns, self.num_rows


@dataclass(frozen=True, eq=False)
class WallCells:
    """The cells of a wall: extremes `[L, H_kv, columns, rows]`, NaN until they are filled, and how many rows are
    missing from each column, `[L, H_kv, columns]`."""

    grid: WallGrid
    low: Floats
    high: Floats
    absent: Ints

    @classmethod
    def of(cls, grid: WallGrid) -> WallCells:
        low, high = np.full(grid.shape, np.nan, np.float32), np.full(grid.shape, np.nan, np.float32)
        return cls(grid, low, high, np.zeros(grid.shape[:3], np.int64))

    def layer(self, number: int) -> WallCells:
        """The cells of one layer, as views."""
        part = slice(number, number + 1)
        return WallCells(replace(self.grid, num_layers=1), self.low[part], self.high[part], self.absent[part])


def has_no_size(request: WallRequest) -> bool:
    """Whether a wall is requested only to learn which rows are held, and no cells are to be drawn."""
    return request.max_columns * request.max_rows <= 1


def wall_slice(
    request: WallRequest,
    past: RowsAt,
    geometry: CacheGeometry,
    magnitudes: BothMagnitudes = (None, None),
) -> WallSlice:
    """Thumbnails of every layer and head, over positions `0 … num_tokens - 1`; `magnitudes` of the layers with rows,
    for the drawn tensor and for the other one."""
    began = time.perf_counter()
    held = held_layers(past, geometry)
    cells = WallCells.of(WallGrid.of(held, request))
    fill(cells, held, request, past)
    return wall_of(cells, held, request, past, geometry, magnitudes, began)


def fill(cells: WallCells, held: Mapping[int, HeldRows], request: WallRequest, past: RowsAt) -> None:
    """Fill the cells from the rows of these layers."""
    if not cells.grid.num_columns:
        return
    if request.change:
        fill_change(cells, held, request, past)
    else:
        fill_rows(cells, held, request)
    if past.half is not None and cells.grid.num_columns:
        fill_absent(cells, held, request)


def wall_of(
    cells: WallCells,
    held: Mapping[int, HeldRows],
    request: WallRequest,
    past: RowsAt,
    geometry: CacheGeometry,
    magnitudes: BothMagnitudes,
    began: float,
) -> WallSlice:
    """The slice of filled cells; of the rows only shapes and positions are read."""
    lacks_rows = past.half is not None or any(rows.positions is not None for rows in held.values())
    tensors = [chosen(rows, request.tensor) for rows in held.values()]
    return WallSlice(
        request=request,
        dtype=str(tensors[-1].dtype).removeprefix("torch.") if tensors else "",
        layers=tuple(held),
        heads=tuple(tensor.shape[1] for tensor in tensors),
        low=read_only_floats(cells.low),
        high=read_only_floats(cells.high),
        num_tokens=request.num_tokens,
        tokens_per_column=cells.grid.per_column,
        dims_per_row=cells.grid.per_row,
        note=note_of(held, request, past, geometry),
        took_ms=ms_since(began),
        absent=read_only_ints(cells.absent) if lacks_rows else None,
        holders=holders(held.values(), np.arange(request.num_tokens)) if lacks_rows else None,
        magnitudes=magnitudes[0],
        other_magnitudes=magnitudes[1],
        states=() if has_no_size(request) else state_pictures(past, geometry),
        held=held_positions(held, request.num_tokens),
        **provenance_of_wall(past, request, held),
    )


def provenance_of_wall(past: RowsAt, request: WallRequest, layers: Collection[int]) -> dict[str, Any]:
    """Where the rows of a wall's layers come from, as fields of its slice."""
    exact_from = tuple(past.exact_from(layer, request.tensor) for layer in layers)
    return {
        "provenance": past.provenance_of(layers, (request.tensor,)),
        "exact_from": exact_from if any(exact_from) else (),
    }


def held_positions(held: Mapping[int, HeldRows], num_tokens: int) -> Ints | None:
    """The first position and one past the last one of each layer, `[L, 2]`; None if all are 0 and `num_tokens`."""
    spans = [(rows.first, rows.stop) if rows.positions is None else (0, num_tokens) for rows in held.values()]
    return None if all(span == (0, num_tokens) for span in spans) else read_only_ints(np.array(spans))


def fill_rows(cells: WallCells, held: Mapping[int, HeldRows], request: WallRequest) -> None:
    """Write the extremes of all rows into the cells, and how many rows are missing."""
    grid, low, high, absent = cells.grid, cells.low, cells.high, cells.absent
    runs: list[tuple[int, torch.Tensor, int]] = []
    for n, rows in enumerate(held.values()):
        tensor = chosen(rows, request.tensor)
        if rows.positions is not None:
            found = scattered(tensor[0].float(), rows.positions, request.num_tokens, grid.per_column, grid.per_row)
            place = (n, slice(0, tensor.shape[1]), slice(None), slice(0, found.low.shape[2]))
            low[place], high[place] = found.low, found.high
            absent[place[:3]] = missing_from(found.held, np.arange(grid.num_columns), request, grid)
            continue
        if rows.first < rows.stop:
            runs.append((n, tensor[0], rows.first))
    fill_cells(low, high, runs, grid.per_column, grid.per_row)


def fill_absent(cells: WallCells, held: Mapping[int, HeldRows], request: WallRequest) -> None:
    """Write how many rows are missing, where some layers have fewer rows than others."""
    for n, rows in enumerate(held.values()):
        counts = held_counts(rows, request.num_tokens, cells.grid)
        cells.absent[n, : len(counts)] = missing_from(counts, np.arange(cells.grid.num_columns), request, cells.grid)


def missing_from(held: Ints, columns: Ints, request: WallRequest, grid: WallGrid) -> Ints:
    """How many positions of these columns have no row."""
    return read_only_ints(np.maximum(num_positions_of(columns, grid.per_column, request.num_tokens) - held, 0))


# ---- what a step changed -----------------------------------------------------------------------------------------


def fill_change(wall: WallCells, held: Mapping[int, HeldRows], request: WallRequest, past: RowsAt) -> None:
    """Draw what a step changed: zero wherever rows are held, except in cells of rows that it wrote or rewrote."""
    grid, low, high, absent = wall.grid, wall.low, wall.high, wall.absent
    deltas = past.changes(request.previous_tokens)
    for n, (layer, rows) in enumerate(held.items()):
        heads, dims = chosen(rows, request.tensor).shape[1::2]
        counts = held_counts(rows, request.num_tokens, grid)
        cells = (n, slice(heads), slice(None), slice(-(-dims // grid.per_row)))
        low[cells] = high[cells] = np.where(counts > 0, np.float32(0), np.float32(np.nan))[..., None]
        if rows.positions is not None:
            absent[n, :heads] = missing_from(counts, np.arange(grid.num_columns), request, grid)
        delta = deltas[layer]
        is_touched = touched(delta, delta.rewritten(request.tensor), (heads, grid.num_columns), 0, grid.per_column)
        found = wall_cells(rows, is_touched, request, grid, delta, rows_before(past, layer, request))
        low[cells][is_touched], high[cells][is_touched] = found.low, found.high


def held_counts(rows: HeldRows, num_tokens: int, grid: WallGrid) -> Ints:
    """How many rows each head holds in each column, `[H_kv, columns]`."""
    places = places_of(rows)
    columns = torch.where(places < num_tokens, places // grid.per_column, grid.num_columns).clamp(max=grid.num_columns)
    counts = torch.zeros(len(places), grid.num_columns + 1, dtype=torch.long, device=places.device)
    return read_only_ints(counts.scatter_add_(1, columns, torch.ones_like(columns)).cpu().numpy()[:, :-1])


def wall_cells(
    rows: HeldRows, is_wanted: Flags, request: WallRequest, grid: WallGrid, delta: RowDelta, older: HeldRows | None
) -> CellExtremes:
    """The wanted cells `[N]` of one layer, of `[H_kv, columns]`. For a picture of changes, `delta` is what the step
    did, and `older` are the rows before it, as far as they are known."""
    tensor, places = chosen(rows, request.tensor)[0], places_of(rows)
    found = rows_in(places, is_wanted, grid.per_column, request.num_tokens)
    values = tensor[found.heads, found.slots].float()
    if request.change:
        positions = places[found.heads, found.slots]
        values = change_of(values, found.heads, positions, request, delta, older)
    return cells_of(values, found.cells, int(is_wanted.sum()), grid.per_row)


def change_of(
    values: torch.Tensor,
    heads: torch.Tensor,
    positions: torch.Tensor,
    request: WallRequest,
    delta: RowDelta,
    older: HeldRows | None,
) -> torch.Tensor:
    """The change that a step made to rows `[M, D]`: new rows as they are, rewritten ones minus their former numbers,
    zero for all others and where these are unknown."""
    changed = values.masked_fill((positions < request.previous_tokens)[:, None], 0.0)
    rewritten = delta.rewritten(request.tensor)
    if older is None or not rewritten:
        return changed
    known = places_of(older)
    slots, are_held = slots_of(known, positions.expand(len(known), -1))
    at = heads, torch.arange(len(heads), device=heads.device)
    is_rewritten = (positions >= rewritten.start) & (positions < min(rewritten.stop, request.previous_tokens))
    is_known = is_rewritten & are_held[at]
    difference = values - chosen(older, request.tensor)[0, heads, slots[at]].float()
    return torch.where(is_known[:, None], difference, changed)


def rows_before(past: RowsAt, layer: int, request: WallRequest) -> HeldRows | None:
    """The rows of a layer before the step, if it may have rewritten any."""
    before = past.before_step(request.previous_tokens)
    return before.rows(layer) if rewrites(past.cache) and before.is_known else None


def note_of(held: Mapping[int, HeldRows], request: WallRequest, past: RowsAt, geometry: CacheGeometry) -> str:
    """A note on missing rows, or on changes that are unknown; empty where there is nothing to say."""
    if not geometry.attention_layers:
        return "This architecture keeps a recurrent state and no K and V."
    if past.half is not None and past.half.note:
        return past.half.note
    # rows of layers that hold none of the drawn positions, only later ones
    later = [
        r for layer in geometry.attention_layers if layer.index not in held and (r := past.cache.rows(layer.index))
    ]
    if not held and not later:
        if any(move.had and not move.num_tokens for move in past.moves[-1:]):
            return "Nothing is held now: the sequence gave its rows up, and computes them anew when it goes on."
        return "Nothing is held: no step has been computed in this cache mode yet."
    if request.change and not knows_change(past, request):
        return "What this step rewrote in older rows is not known any more."
    is_scattered = any(rows.positions is not None for rows in held.values())
    gone = max((rows.first for rows in (*held.values(), *later)), default=0) if later or not is_scattered else 0
    if geometry.has_encoder:
        gone = 0  # the decoder's rows begin after those of the source
    return f"Positions before {gone} have left the window of some layers." if gone else ""


def knows_change(past: RowsAt, request: WallRequest) -> bool:
    """Whether the difference to the step before is known for all rows."""
    if past.cache.spec.quantizer is not None:
        return request.previous_tokens == 0
    if not rewrites(past.cache):
        return True
    return past.is_known and past.before_step(request.previous_tokens).is_known
