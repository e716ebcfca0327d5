"""The cells of a wall or of a head: drawn once, and from then on only where they differ.

A whole picture is all of its columns, an update those that steps have touched, the picture of an earlier step those
behind its final rows: all of them are filled by the same function. A cell keeps both its smallest and its largest
value, so that a single outlier channel never averages away; a NaN makes its cell NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, reduce
from typing import Any

import numpy as np
import torch
from msgspec import Struct, structs

from engine.cache.contract import NO_ROWS, RowDelta
from engine.geometry.dimensions import CacheGeometry
from engine.look.lenses import computed, held_of_all, read, read_all, rows_at_once
from engine.look.magnitudes import HeadStatistics
from engine.look.reductions import (
    Flags,
    as_slice,
    cells_of,
    fill_cells,
    per_cell,
    rows_in,
    touched,
)
from engine.look.source import ALL_ROWS, Held, Source, rewrites, slots_of
from engine.spec.codec import Part
from engine.spec.lenses import LENSES, Lens
from engine.wire.pictures import HeadRequest, WallRequest
from engine.wire.records import Floats, Ints, read_only_ints

EXACT_NUMBERS = (
    1 << 24
)  # more numbers than these are drawn from stored extremes even if they are coarser than requested

Wanted = range | Flags  # columns of all heads, or some of the cells [H, columns]


class Alike(Struct, frozen=True, eq=False):
    """The layers of a picture that hold rows of one form, in which as many heads are drawn and have as many values. A
    layer is alone if its rows have gaps, or are those of a file, of which few are in memory at a time. `places` are
    those of the layers among all of the picture."""

    held: Held
    num_heads: int
    num_values: int
    layers: list[int]
    places: list[int]


class Grid(Struct, frozen=True, eq=False, dict=True):
    """The cells of a picture, `[L, H, columns, rows]`, of the layers that hold rows: of one `head`, or of all. Column 0
    begins at position `first`, and so many tokens and values share a cell, up to position `stop`. `is_scattered`: some
    layer has gaps between its rows. `is_coarse`: cells consist of whole cells of the extremes that a file stores."""

    held: dict[int, Held]
    alike: tuple[Alike, ...]
    head: int | None
    first: int
    stop: int
    per_column: int
    per_row: int
    num_columns: int
    num_rows: int
    is_scattered: bool
    is_coarse: bool = False

    @cached_property
    def shape(self) -> tuple[int, int, int, int]:
        heads = max([each.num_heads for each in self.alike], default=0)
        return len(self.held), heads, self.num_columns, self.num_rows

    @cached_property
    def form(self) -> tuple[object, ...]:
        """What two grids must have in common so that cells of one can be those of the other."""
        sizes = sorted([(each.num_heads, each.num_values, place) for each in self.alike for place in each.places])
        size = (self.per_column, self.per_row, self.num_rows) if self.num_rows else ()
        return list(self.held), sizes, self.head, size, self.is_scattered, self.is_coarse

    def columns(self, span: range) -> range:
        """The columns in which some positions are."""
        start = max(0, span.start - self.first) // self.per_column
        return range(start, max(start, min(self.num_columns, -(-(span.stop - self.first) // self.per_column))))

    def span(self, columns: range) -> range:
        """The positions of some columns."""
        start = self.first + columns.start * self.per_column
        return range(start, max(start, min(self.stop, self.first + columns.stop * self.per_column)))


def has_no_size(request: WallRequest | HeadRequest) -> bool:
    """Whether a wall is requested only to learn which rows are held, and no cells are to be drawn."""
    return isinstance(request, WallRequest) and request.max_columns * request.max_rows <= 1


def held_in(request: WallRequest | HeadRequest, source: Source, geometry: CacheGeometry) -> dict[int, Held]:
    """The layers of a picture that hold rows, and which."""
    lens = LENSES[request.lens]
    if isinstance(request, HeadRequest):
        return held_of_all(source, lens, [request.layer])
    layers = [each.index for each in geometry.attention_layers] if lens.is_of_every_head else []
    return held_of_all(source, lens, layers)


def alike_of(held: Mapping[int, Held], lens: Lens, source: Source, *, is_wall: bool) -> tuple[Alike, ...]:
    """Layers by what they hold."""
    found: dict[object, Alike] = {}
    shared: dict[Held, Alike] = {}  # most layers hold the same, and share the object that says so
    are_whole = bool(held) and rows_at_once(source, lens, next(iter(held))) == ALL_ROWS
    for place, (layer, each) in enumerate(held.items()):
        alike = shared.get(each)
        if alike is None:
            is_alone = not are_whole or each.positions is not None
            form = layer if is_alone else each.form
            if form not in found:
                num_values = 1 if lens.values == 1 else each.dim(lens.part or "keys")
                found[form] = Alike(each, each.num_heads if is_wall else 1, num_values, [], [])
            alike = found[form]
            if not is_alone:
                shared[each] = alike
        alike.layers.append(layer)
        alike.places.append(place)
    return tuple(found.values())


def grid_of(request: WallRequest | HeadRequest, source: Source, geometry: CacheGeometry) -> Grid:
    """The grid for a request."""
    held, is_wall = held_in(request, source, geometry), isinstance(request, WallRequest)
    alike = alike_of(held, LENSES[request.lens], source, is_wall=is_wall)
    is_scattered = any(each.held.positions is not None for each in alike)
    if isinstance(request, HeadRequest):
        return _grid_of_head(request, held, alike, is_scattered)
    tokens = max(1, request.num_tokens)
    values = max([each.num_values for each in alike], default=1)
    per_column, per_row = per_cell(tokens, request.max_columns), per_cell(values, request.max_rows)
    if has_no_size(request):
        return Grid(held, alike, None, 0, request.num_tokens, per_column, per_row, 0, 0, is_scattered)
    is_coarse, coarse = False, None if request.change else source.coarseness(request.lens)
    if coarse is not None:
        is_fine = coarse[0] <= per_column and coarse[1] <= per_row
        is_coarse = is_fine or coarse[2] > EXACT_NUMBERS
        if is_coarse:
            per_column, per_row = -(-per_column // coarse[0]) * coarse[0], -(-per_row // coarse[1]) * coarse[1]
    size = -(-tokens // per_column), -(-values // per_row)
    return Grid(held, alike, None, 0, request.num_tokens, per_column, per_row, *size, is_scattered, is_coarse)


def _grid_of_head(request: HeadRequest, held: dict[int, Held], alike: tuple[Alike, ...], is_scattered: bool) -> Grid:
    if not alike:
        return Grid({}, (), None, 0, 0, per_cell(0, request.max_columns), 1, 0, 0, False)
    (one,), stop = alike, min(request.stop, request.num_tokens)
    first = max(one.held.first, request.start)
    stop = stop if is_scattered else min(stop, one.held.stop)
    count, values = max(0, stop - first), one.num_values
    per_column = per_cell(count, request.max_columns)
    per_row = per_cell(values, request.max_columns) if LENSES[request.lens].values == "tokens" else 1
    num_rows = -(-values // per_row) if count or is_scattered else 0
    num_columns, head = -(-count // per_column), min(request.kv_head, one.held.num_heads - 1)
    return Grid(held, alike, head, first, max(first, stop), per_column, per_row, num_columns, num_rows, is_scattered)


@dataclass(eq=False)
class Canvas:
    """One picture as it was last drawn: `low` and `high` `[L, H, columns, rows]`, NaN where there are no rows; and how
    many rows are `held` in each `[L, H, columns]` of the layers that have gaps between their rows.

    Cells stay as they are where nothing has happened to their rows; `aim` tells which ones `draw` will draw.
    `num_removed` columns were removed at the left end, and `deltas` are what happened to the rows of each layer since
    the picture before, if that is how it was drawn. `statistics` are those of a head's rows up to a position, as long
    as others are only added behind these.
    """

    request: WallRequest | HeadRequest | None = None
    grid: Grid | None = None
    source: Source | None = None
    low: Floats = field(default_factory=lambda: np.empty((0, 0, 0, 0), np.float32))
    high: Floats = field(default_factory=lambda: np.empty((0, 0, 0, 0), np.float32))
    held: Ints = field(default_factory=lambda: np.empty((0, 0, 0), np.int64))
    num_removed: int = 0
    deltas: list[RowDelta] | None = None
    statistics: tuple[int, HeadStatistics] | None = None
    _room: tuple[Any, Any, Any] | None = None  # arrays with space for more columns
    _wanted: Sequence[Wanted] = ()  # the cells that are to be drawn

    def aim(self, request: WallRequest | HeadRequest, source: Source, geometry: CacheGeometry) -> Ints | None:
        """Prepare for the picture of a request, which `draw` draws. Returns the places `[3, N]` (layer, head, column)
        of the cells that are drawn again; all others stay as they were. None: all of them are drawn."""
        grid = grid_of(request, source, geometry)
        self.deltas, self.num_removed = None, 0
        wanted = self._changed(request, source, grid)
        if wanted is not None and self.grid is not None:
            self.num_removed = (grid.first - self.grid.first) // grid.per_column
        if self.statistics is not None:
            deltas = None if self.num_removed else self.deltas
            if deltas is None or not all(deltas[layer].is_plain for layer in grid.held):
                self.statistics = None
        self._resize(request, grid, keeps=wanted is not None)
        self.request, self.grid, self.source = request, grid, source
        self._wanted = [range(grid.num_columns)] * len(grid.alike) if wanted is None else wanted
        return None if wanted is None else _places(wanted, grid)

    def forget(self) -> None:
        """Draw everything the next time."""
        self.source = None

    def _changed(self, request: WallRequest | HeadRequest, source: Source, grid: Grid) -> list[Wanted] | None:
        """The cells of layers alike that may differ from those drawn; None if all may."""
        lens, was, before = LENSES[request.lens], self.source, self.request
        if was is None or before is None or self.grid is None or source.owner != was.owner:
            return None
        shift = grid.first - self.grid.first
        if _asked(before) != _asked(request) or self.grid.form != grid.form or shift < 0 or shift % grid.per_column:
            return None
        if isinstance(request, HeadRequest) and not (grid.num_columns and self.grid.num_columns):
            return None
        # a picture of changes must also redraw the cells that the step before had changed
        is_change = isinstance(before, WallRequest) and before.change
        since = before.previous_tokens if is_change else was.num_tokens  # type: ignore[union-attr]
        is_later = source.num_tokens >= was.num_tokens and source.half is None and was.half is None
        if (part := lens.part) is None:  # what a query saw stays; what a token received grows
            new = range(max(0, was.num_tokens - grid.first) // grid.per_column, grid.num_columns)
            return [new] * len(grid.alike) if lens.columns == "queries" and lens.values == 1 and is_later else None
        self.deltas = source.changes(since) if is_later else None
        if self.deltas is not None:
            has_rewritten = not is_change or rewrites(source.spec)
            return [_touched(each, self.deltas, part if has_rewritten else None, grid) for each in grid.alike]
        if is_change or isinstance(request, HeadRequest):
            return None
        final = [each.num_final(layer, part) for each in (was, source) for layer in grid.held]
        first = min(final, default=0) // grid.per_column
        return [range(first, grid.num_columns)] * len(grid.alike) if first else None

    def _resize(self, request: WallRequest | HeadRequest, grid: Grid, *, keeps: bool) -> None:
        """Make room for the cells of a grid; those drawn are kept, moved to the left if columns were removed."""
        layers, heads, columns, rows = grid.shape
        had = self.low.shape[2] if keeps else 0
        if keeps and had == columns and not self.num_removed:
            return
        if self._room is None or not keeps or self._room[0].shape[2] < columns:
            room = max(columns, min(request.max_columns, 2 * columns + 16) if keeps else columns)
            low = np.full((layers, heads, room, rows), np.nan, np.float32)
            made: tuple[Any, Any, Any] = low, low.copy(), np.zeros((layers, heads, room), np.int64)
            if keeps:
                for new, old in zip(made, (self.low, self.high, self.held), strict=True):
                    new[:, :, :had] = old
            self._room = made
        kept, shift = max(0, had - self.num_removed), self.num_removed
        rooms = zip(self._room, (np.nan, np.nan, 0), strict=True)
        self.low, self.high, self.held = [_moved(array, shift, kept, columns, empty) for array, empty in rooms]

    def drawn_again(self, cells: Any, places: Ints) -> Any:
        """Copies `[N, …]` of those of cells `[L, H, columns, …]` that are drawn again, at these `places` `[3, N]`."""
        if len(self._wanted) == 1 and isinstance(run := self._wanted[0], range):
            return cells[:, :, run.start : run.stop].reshape(places.shape[1], *cells.shape[3:]).copy()
        return cells[tuple(places)]

    # ---- cells ---------------------------------------------------------------------------------------------------

    def draw(self) -> None:
        """Fill the wanted cells from the rows of the source."""
        request, source, grid = self.request, self.source, self.grid
        assert request is not None
        assert source is not None
        assert grid is not None
        lens, change = LENSES[request.lens], StepChange.of(request, source)
        for alike, want in zip(grid.alike, self._wanted, strict=True):
            if not grid.num_columns or not len(want):
                continue
            if change is not None or alike.held.positions is not None or not isinstance(want, range):
                for number in range(len(alike.layers)):
                    self._gather(alike, number, want, lens, source, change)
            else:
                self._fill_columns(alike, want, lens, source)

    def _fill_columns(self, alike: Alike, want: range, lens: Lens, source: Source) -> None:
        """Fill these columns of layers that hold rows of one form."""
        grid = self.grid
        assert grid is not None
        span = grid.span(want)
        if not alike.held.first <= span.start < span.stop <= alike.held.stop:
            columns = (as_slice(alike.places), slice(alike.num_heads), slice(want.start, want.stop))
            self.low[columns] = self.high[columns] = np.nan
        if grid.is_coarse and self._fill_from_extremes(alike, want, lens, source):
            return
        at_once = max(1, rows_at_once(source, lens, alike.layers[0]) // grid.per_column)
        for start in range(span.start, span.stop, at_once * grid.per_column):
            piece = range(start, min(span.stop, start + at_once * grid.per_column))
            for rows in read_all(source, lens, alike.layers, alike.held, piece, grid.head):
                if rows.numbers.shape[2]:
                    places, first = [alike.places[place] for place in rows.places], rows.first - grid.first
                    fill_cells(self.low, self.high, places, rows.numbers, first, grid.per_column, grid.per_row)

    def _gather(
        self, alike: Alike, number: int, want: Wanted, lens: Lens, source: Source, change: StepChange | None
    ) -> None:
        """Fill the wanted cells of one of these layers from rows that are not consecutive, or that are drawn as a step
        changed them."""
        grid, layer, place = self.grid, alike.layers[number], alike.places[number]
        assert grid is not None
        is_wanted = want
        if isinstance(want, range):
            is_wanted = np.zeros((alike.num_heads, grid.num_columns), bool)
            is_wanted[:, want.start : want.stop] = True
        assert isinstance(is_wanted, np.ndarray)
        low, high, held = (part[place, : alike.num_heads] for part in (self.low, self.high, self.held))
        num_rows = -(-alike.num_values // grid.per_row)
        if change is not None and isinstance(want, range) and len(want) == grid.num_columns:
            held[:] = _held_in_cells(alike.held, grid)  # zero wherever rows are held and the step changed none
            low[..., :num_rows] = high[..., :num_rows] = np.where(held > 0, np.float32(0), np.float32(np.nan))[
                ..., None
            ]
            is_wanted = change.touched(layer, alike.num_heads, lens, grid)
        columns = np.flatnonzero(is_wanted.any(0))
        if not columns.size:
            return
        span = grid.span(range(int(columns[0]), int(columns[-1]) + 1))
        plain = lens if lens.part is None else LENSES[lens.part]  # computed below, of what the step changed
        rows = read(source, plain, layer, span, grid.head)
        low[is_wanted] = high[is_wanted] = np.nan
        held[is_wanted] = 0
        if rows is None:
            return
        places = rows.places
        heads, slots, at = rows_in(places - grid.first, is_wanted, grid.per_column, grid.stop - grid.first)
        values, positions = rows.numbers[heads, slots].float(), places[heads, slots]
        if change is not None:
            values = change.of_rows(values, heads, positions, layer, lens, span)
        values = computed(lens, values[None], positions[None], source, layer)[0]
        lows, highs, held[is_wanted] = cells_of(values, at, int(is_wanted.sum()), grid.per_row)
        low[..., :num_rows][is_wanted], high[..., :num_rows][is_wanted] = lows, highs

    def _fill_from_extremes(self, alike: Alike, want: range, lens: Lens, source: Source) -> bool:
        """Fill the cells of a layer from the extremes that a file stores; False if it has none of this layer."""
        grid, (layer,), (place,) = self.grid, alike.layers, alike.places
        assert grid is not None
        coarse, found = source.coarseness(lens.name), source.extremes(layer, lens.name)
        if coarse is None or found is None or len(want) < grid.num_columns:
            return False
        columns, rows = grid.per_column // coarse[0], grid.per_row // coarse[1]
        for numbers, into in ((found.low, self.low), (found.high, self.high)):
            cells = merged(numbers, found.held, columns, rows, is_low=into is self.low)
            into[place, : cells.shape[0], : cells.shape[1], : cells.shape[2]] = cells
        return True


def _touched(alike: Alike, deltas: list[RowDelta], part: Part | None, grid: Grid) -> Wanted:
    """The cells of layers alike in which rows were written, evicted or, of this part, rewritten since the picture
    before, in any of the layers."""
    delta = reduce(RowDelta.then, dict.fromkeys([deltas[layer] for layer in alike.layers]))
    rewritten = NO_ROWS if part is None else delta.rewritten(part)
    if not delta.evicted:
        runs = [run for run in (delta.written, rewritten, delta.left_window) if run.stop > max(grid.first, run.start)]
        if len(runs) <= 1:  # of every head the same columns
            return grid.columns(runs[0]) if runs else range(0)
    elif grid.head is not None:  # of the head that is drawn
        went = tuple(each[min(grid.head, len(each) - 1)][None] for each in delta.evicted)
        delta = replace(delta, evicted=went)
    shape = alike.num_heads, grid.num_columns
    return as_run(touched(delta, rewritten, shape, grid.first, grid.per_column))


def _moved(array: Any, shift: int, kept: int, columns: int, empty: float) -> Any:
    """The first `columns` of an array `[L, H, columns, …]`, of which `kept` are those from `shift` on, the others
    empty."""
    if shift:
        array[:, :, :kept] = array[:, :, shift : shift + kept].copy()
    array[:, :, kept:columns] = empty
    return array[:, :, :columns]


def _asked(request: WallRequest | HeadRequest) -> object:
    """A request without the fields that change from step to step."""
    changes = {"previous_tokens": 0} if isinstance(request, WallRequest) else {"start": 0, "stop": 0}
    return structs.replace(request, num_tokens=0, **changes)


def as_run(flags: Flags) -> Wanted:
    """Cells `[H, columns]` as a run of columns, if they are all cells of consecutive columns."""
    columns = np.flatnonzero(flags.any(0))
    if not columns.size:
        return range(0)
    run = range(int(columns[0]), int(columns[-1]) + 1)
    return run if flags[:, run.start : run.stop].all() else flags


@lru_cache(8)
def _indices(num_layers: int, num_heads: int, num_columns: int) -> Ints:
    """The places `[3, N]` of all cells of so many columns; steps write as many columns again and again."""
    return read_only_ints(np.indices((num_layers, num_heads, num_columns)).reshape(3, -1))


def _places(wanted: Sequence[Wanted], grid: Grid) -> Ints:
    """The places `[3, N]` (layer, head, column) of some cells, in order."""
    num_layers, num_heads, *_ = grid.shape
    if len(wanted) == 1 and isinstance(want := wanted[0], range):
        return read_only_ints(_indices(num_layers, num_heads, len(want)) + np.array([[0], [0], [want.start]]))
    is_wanted = np.zeros(grid.shape[:3], bool)
    for alike, want in zip(grid.alike, wanted, strict=True):
        columns, flags = (slice(want.start, want.stop), True) if isinstance(want, range) else (slice(None), want)
        is_wanted[alike.places, : alike.num_heads, columns] = flags
    return read_only_ints(np.array(is_wanted.nonzero()))


def held_in_columns(held: Held, grid: Grid, columns: range) -> Ints:
    """How many of the rows of a layer without gaps are in each of these columns."""
    edges = grid.first + np.arange(columns.start, columns.stop + 1) * grid.per_column
    return read_only_ints(np.diff(np.clip(np.minimum(edges, grid.stop), held.first, max(held.first, held.stop))))


def _held_in_cells(held: Held, grid: Grid) -> Ints:
    """How many rows each head of a layer holds in each column: `[H_kv, columns]`, or `[1, columns]` for all."""
    if held.positions is None:
        return held_in_columns(held, grid, range(grid.num_columns))[None]
    places, last = held.positions, grid.num_columns
    columns = torch.where(places < grid.stop, places // grid.per_column, last).clamp(max=last)
    counts = torch.zeros(len(places), last + 1, dtype=torch.long, device=places.device)
    return read_only_ints(counts.scatter_add_(1, columns, torch.ones_like(columns)).cpu().numpy()[:, :-1])


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


# ---- what a step changed -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StepChange:
    """What the step after `previous` tokens did to the rows of a source: `deltas` by layer, and the rows `before` it,
    None where these are not known or nothing was rewritten."""

    previous: int
    deltas: list[RowDelta] | None
    written: range
    before: Source | None

    @classmethod
    def of(cls, request: WallRequest | HeadRequest, source: Source) -> StepChange | None:
        """The change that a picture shows; None if it shows the rows themselves."""
        if not isinstance(request, WallRequest) or not request.change or LENSES[request.lens].part is None:
            return None
        previous = request.previous_tokens
        may_rewrite = rewrites(source.spec)
        deltas = source.changes(previous) if may_rewrite else None
        if may_rewrite and not deltas:  # it is not known which older rows it rewrote, so all may be
            older = range(previous)
            deltas = [RowDelta(range(previous, source.num_tokens), older, older)]
        return cls(
            previous, deltas, range(previous, source.num_tokens), source.before(previous) if may_rewrite else None
        )

    def delta(self, layer: int) -> RowDelta:
        if not self.deltas:
            return RowDelta(self.written)
        return self.deltas[layer] if len(self.deltas) > 1 else self.deltas[0]

    def touched(self, layer: int, num_heads: int, lens: Lens, grid: Grid) -> Flags:
        """The cells `[H, columns]` of a layer in which the step wrote, rewrote or evicted rows."""
        assert lens.part is not None
        delta = self.delta(layer)
        return touched(delta, delta.rewritten(lens.part), (num_heads, grid.num_columns), 0, grid.per_column)

    def of_rows(
        self, values: torch.Tensor, heads: torch.Tensor, positions: torch.Tensor, layer: int, lens: Lens, span: range
    ) -> torch.Tensor:
        """The change of rows `[M, D]`: new rows as they are, rewritten ones minus their former numbers, zero for all
        others and where these are unknown."""
        assert lens.part is not None
        changed = values.masked_fill((positions < self.previous)[:, None], 0.0)
        rewritten = self.delta(layer).rewritten(lens.part)
        older = self.before.rows(layer, lens.part, span) if self.before is not None and rewritten else None
        if older is None or not older.numbers.shape[1]:
            return changed
        known = older.places
        slots, are_held = slots_of(known, positions.expand(len(known), -1))
        at = heads, torch.arange(len(heads), device=heads.device)
        is_rewritten = (positions >= rewritten.start) & (positions < min(rewritten.stop, self.previous))
        is_known = is_rewritten & are_held[at]
        return torch.where(is_known[:, None], values - older.numbers[heads, slots[at]].float(), changed)
