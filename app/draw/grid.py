"""Values by layer and head as pictures: one line per head, across tokens, channels or heads, on one colour scale."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from app.draw.colormap import ColorTable, Floats, magnitude_index, packed, robust_limit


def resample(low: Floats, high: Floats, size: int, axis: int) -> tuple[Floats, Floats]:
    """Resample to `size` cells along an axis: minimum and maximum of cells that are merged, repeated cells if there are
    fewer."""
    count = low.shape[axis]
    if count == size:
        return low, high
    if count < size:
        source = source_cells(count, size)
        return low.take(source, axis=axis), high.take(source, axis=axis)
    starts = first_cells(count, size)
    return np.minimum.reduceat(low, starts, axis=axis), np.maximum.reduceat(high, starts, axis=axis)


def whole_steps(pixels: float, step: int) -> int:
    """How many columns to request for so many pixels: a multiple of `step`, at most one per pixel, at least `step`."""
    return max(step, int(pixels) // step * step)


def source_cells(count: int, size: int) -> npt.NDArray[np.intp]:
    """For each of `size` pixels, the index of the cell (of `count`) that it shows."""
    return np.arange(size, dtype=np.intp) * count // size


def first_cells(count: int, size: int) -> npt.NDArray[np.intp]:
    """For each of `size` pixels, the first of the cells (of `count >= size`) that are merged in it."""
    return -(-np.arange(size, dtype=np.intp) * count // size)


def cell_span(cell: int, count: int, size: int) -> tuple[int, int]:
    """The pixels `start … stop` of a cell, at least one."""
    if count > size:
        pixel = min(cell * size // count, size - 1)
        return pixel, pixel + 1
    start, stop = -(-cell * size // count), -(-(cell + 1) * size // count)
    return start, max(stop, start + 1)


def cell_at(pixel: int, count: int, size: int) -> int:
    """The cell that a pixel shows; the first, if it shows several."""
    return min(max(pixel, 0), size - 1) * count // size if count <= size else -(-pixel * count // size)


Pixels = npt.NDArray[np.uint32]


class GridLine(Struct, frozen=True):
    """One line of a picture: a head of a layer. Only its first `columns` columns exist."""

    layer: int
    head: int
    columns: int


class ValueGrid(Struct, frozen=True, eq=False):
    """Values `[R, C]` and the line of each row. `per_column` positions share a column (1 for channels and heads).
    `blank_words` say why its end is blank, the longest first."""

    title: str
    values: Floats
    lines: tuple[GridLine, ...]
    per_column: int = 1
    stop: int = 0
    blank_words: tuple[str, ...] = ("no error",)

    @property
    def is_empty(self) -> bool:
        return not self.values.size


class GridCell(Struct, frozen=True):
    """One cell of a grid: its line, its column, the first and last place that it covers, and its value."""

    line: GridLine
    index: int
    column: int
    first: int
    last: int
    value: float


def grid(
    title: str, values: Floats, layers: tuple[int, ...], sizes: tuple[tuple[int, int], ...], per_column: int, stop: int
) -> ValueGrid:
    """Make a grid of `values` `[L, H, C]`; `sizes` are the numbers of heads and columns of each layer, beyond which
    nothing exists."""
    rows, lines = [], []
    for index, (layer, (heads, columns)) in enumerate(zip(layers, sizes, strict=True)):
        for head in range(min(heads, values.shape[1])):
            rows.append(GridLine(layer, head, min(columns, values.shape[2])))
            lines.append(values[index, head])
    stacked = np.stack(lines).astype(np.float32) if lines else np.empty((0, 0), np.float32)
    return ValueGrid(title, stacked, tuple(rows), per_column, stop)


def present(shown: ValueGrid) -> npt.NDArray[np.bool_]:
    """Which cells exist: `[R, C]`."""
    counts = np.array([row.columns for row in shown.lines], dtype=np.int64)[:, None]
    return np.arange(shown.values.shape[1])[None, :] < counts if counts.size else np.empty((0, 0), np.bool_)


def shared_limit(grids: tuple[ValueGrid, ...]) -> float:
    """The colour range of several grids: 99.5 % of their cells other than zero are below it."""
    found = [shown.values[present(shown)] for shown in grids if not shown.is_empty]
    return robust_limit(np.concatenate(found), sample=1 << 16) if found else 1.0


def largest(grids: tuple[ValueGrid, ...]) -> float:
    """The largest finite value of several grids; 0 if there is none."""
    found = [float(shown.values[np.isfinite(shown.values)].max(initial=0.0)) for shown in grids]
    return max(found, default=0.0)


def paint(shown: ValueGrid, width: int, height: int, limit: float, table: ColorTable) -> Pixels:
    """The grid scaled to `[height, width]` pixels, 0xAARRGGBB; where several cells share a pixel, the largest is
    shown."""
    if shown.is_empty or width < 1 or height < 1:
        return np.zeros((max(0, height), max(0, width)), np.uint32)
    is_there = present(shown)
    values = np.where(is_there, shown.values, -1.0).astype(np.float32)
    for axis, size in ((1, width), (0, height)):
        if values.shape[axis] > size:
            values = resample(values, values, size, axis)[1]
    colours = np.take(packed(table), magnitude_index(values, limit))
    colours[values < 0] = 0
    rows, columns = source_cells(values.shape[0], height), source_cells(values.shape[1], width)
    return np.ascontiguousarray(colours.take(rows, axis=0).take(columns, axis=1))


def exact_from(shown: ValueGrid) -> int | None:
    """The first column from which on no line has an error; None if the last column has one."""
    if shown.is_empty:
        return None
    has_error = (np.nan_to_num(shown.values, nan=1.0) * present(shown)).any(axis=0)
    first = int(np.flatnonzero(has_error).max(initial=-1)) + 1
    return first if first < shown.values.shape[1] else None


def find(shown: ValueGrid, x: int, y: int, width: int, height: int) -> GridCell | None:
    """The cell under a pixel of the picture; None if none exists there."""
    if shown.is_empty or not (0 <= x < width and 0 <= y < height):
        return None
    count, columns = shown.values.shape
    index = cell_at(y, count, height)
    first, last = _columns_at(x, columns, width)
    line = shown.lines[index]
    last = min(last, line.columns - 1)
    if first > last:
        return None
    column = first + int(np.argmax(np.nan_to_num(shown.values[index, first : last + 1], nan=np.inf)))
    start = column * shown.per_column
    stop = min(start + shown.per_column, shown.stop) if shown.stop else start + shown.per_column
    return GridCell(line, index, column, start, stop - 1, float(shown.values[index, column]))


def row_span(shown: ValueGrid, layer: int, head: int, height: int) -> tuple[int, int] | None:
    """The pixel rows `start … stop` of a head of a layer; None if the grid does not have it."""
    for index, row in enumerate(shown.lines):
        if (row.layer, row.head) == (layer, head):
            return cell_span(index, len(shown.lines), height)
    return None


def column_span(shown: ValueGrid, place: int, width: int) -> tuple[int, int] | None:
    """The pixel columns `start … stop` of a position or channel; None if the grid does not have it."""
    column = place // shown.per_column
    if shown.is_empty or not 0 <= column < shown.values.shape[1]:
        return None
    return cell_span(column, shown.values.shape[1], width)


def layer_spans(shown: ValueGrid, height: int) -> tuple[tuple[int, int, int], ...]:
    """(layer, first, last + 1) in pixel rows, from top to bottom."""
    spans: dict[int, tuple[int, int]] = {}
    for index, row in enumerate(shown.lines):
        start, stop = cell_span(index, len(shown.lines), height)
        spans[row.layer] = (spans.get(row.layer, (start, stop))[0], stop)
    return tuple((layer, start, stop) for layer, (start, stop) in spans.items())


def _columns_at(x: int, columns: int, width: int) -> tuple[int, int]:
    """The columns `first … last` that share a pixel column."""
    if columns <= width:
        column = cell_at(x, columns, width)
        return column, column
    return cell_at(x, columns, width), (cell_at(x + 1, columns, width) if x + 1 < width else columns) - 1


Span = tuple[float, float]


class TokenRange(Struct, frozen=True):
    """Positions `low … high`. A range that `follows` keeps its length and stays at the newest token."""

    low: float
    high: float
    follows: bool = False

    def within(self, start: float, stop: float) -> Span | None:
        """The range shifted into the existing positions `start … stop`; None if it covers all of them."""
        span = min(self.high - self.low, stop - start)
        if span >= stop - start - 1e-6:
            return None
        low = stop - span if self.follows else min(max(self.low, start), stop - span)
        return low, low + span

    def moved_into(self, start: float, stop: float) -> TokenRange | None:
        """The same as a TokenRange; None if all positions are visible."""
        found = self.within(start, stop)
        return None if found is None else replace(self, low=found[0], high=found[1])


def rows_of(wanted: TokenRange | None, num_tokens: int) -> tuple[int, int]:
    """The token rows `start … stop` of a range; None: all."""
    found = None if wanted is None else wanted.within(0, num_tokens)
    return (0, num_tokens) if found is None else (math.floor(found[0]), math.ceil(found[1]))


def covers(extent: Span, visible: Span) -> bool:
    """Whether a picture of the positions `extent` covers everything visible."""
    return extent[0] <= visible[0] + 1e-6 and extent[1] >= visible[1] - 1e-6


def column_at(position: int, start: int, stop: int, per_column: int) -> tuple[int, int] | None:
    """Where the column that contains `position` begins and ends, for columns from `start` to `stop`; None outside."""
    if not start <= position < stop:
        return None
    first = start + (position - start) // per_column * per_column
    return first, min(first + per_column, stop)
