"""Values by layer and head as pictures: one line a head, across tokens, channels or heads, on one scale of colours."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from app.draw.colormap import ColorTable, Floats, magnitude_index, packed, robust_limit
from app.draw.resample import cell_at, cell_span, resample, source_cells

Pixels = npt.NDArray[np.uint32]


class GridLine(Struct, frozen=True):
    """One line of a picture: a head of a layer; `columns` of it mean something, what lies beyond does not exist."""

    layer: int
    head: int
    columns: int


class ValueGrid(Struct, frozen=True, eq=False):
    """Values `[R, C]` with what each line is. `per_column` positions share a column (1 for channels and heads).
    `blank_words` say why the end of it is blank, the longest first."""

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
    """One cell of a grid: its line, its column, the first and last place that it stands for, its value."""

    line: GridLine
    index: int
    column: int
    first: int
    last: int
    value: float


def grid(
    title: str, values: Floats, layers: tuple[int, ...], sizes: tuple[tuple[int, int], ...], per_column: int, stop: int
) -> ValueGrid:
    """Lines of `values` `[L, H, C]`; `sizes` are each layer's heads and columns, the rest of its room holds nothing."""
    rows, lines = [], []
    for index, (layer, (heads, columns)) in enumerate(zip(layers, sizes, strict=True)):
        for head in range(min(heads, values.shape[1])):
            rows.append(GridLine(layer, head, min(columns, values.shape[2])))
            lines.append(values[index, head])
    stacked = np.stack(lines).astype(np.float32) if lines else np.empty((0, 0), np.float32)
    return ValueGrid(title, stacked, tuple(rows), per_column, stop)


def present(shown: ValueGrid) -> npt.NDArray[np.bool_]:
    """Which cells exist."""
    counts = np.array([row.columns for row in shown.lines], dtype=np.int64)[:, None]
    return np.arange(shown.values.shape[1])[None, :] < counts if counts.size else np.empty((0, 0), np.bool_)


def shared_limit(grids: tuple[ValueGrid, ...]) -> float:
    """One range of colours for all of them: what 99.5 % of the cells stay below."""
    found = [shown.values[present(shown)] for shown in grids if not shown.is_empty]
    return robust_limit(np.concatenate(found), sample=1 << 16) if found else 1.0


def largest(grids: tuple[ValueGrid, ...]) -> float:
    """The largest finite value of all of them."""
    found = [float(shown.values[np.isfinite(shown.values)].max(initial=0.0)) for shown in grids]
    return max(found, default=0.0)


def paint(shown: ValueGrid, width: int, height: int, limit: float, table: ColorTable) -> Pixels:
    """The grid stretched over `[height, width]` pixels, 0xAARRGGBB; where cells fall together the largest is shown."""
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
    """The first of the last columns in which no line has an error."""
    if shown.is_empty:
        return None
    has_error = (np.nan_to_num(shown.values, nan=1.0) * present(shown)).any(axis=0)
    first = int(np.flatnonzero(has_error).max(initial=-1)) + 1
    return first if first < shown.values.shape[1] else None


def find(shown: ValueGrid, x: int, y: int, width: int, height: int) -> GridCell | None:
    """The cell under a pixel of the picture; None where nothing exists."""
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
    """The pixel rows `start … stop` of one head of a layer."""
    for index, row in enumerate(shown.lines):
        if (row.layer, row.head) == (layer, head):
            return cell_span(index, len(shown.lines), height)
    return None


def column_span(shown: ValueGrid, place: int, width: int) -> tuple[int, int] | None:
    """The pixel columns `start … stop` of a position or channel."""
    column = place // shown.per_column
    if shown.is_empty or not 0 <= column < shown.values.shape[1]:
        return None
    return cell_span(column, shown.values.shape[1], width)


def layer_spans(shown: ValueGrid, height: int) -> tuple[tuple[int, int, int], ...]:
    """`(layer, start, stop)` in pixel rows, in the order of the picture."""
    spans: dict[int, tuple[int, int]] = {}
    for index, row in enumerate(shown.lines):
        start, stop = cell_span(index, len(shown.lines), height)
        spans[row.layer] = (spans.get(row.layer, (start, stop))[0], stop)
    return tuple((layer, start, stop) for layer, (start, stop) in spans.items())


def _columns_at(x: int, columns: int, width: int) -> tuple[int, int]:
    """The columns `first … last` that fall into a pixel."""
    if columns <= width:
        column = cell_at(x, columns, width)
        return column, column
    return cell_at(x, columns, width), (cell_at(x + 1, columns, width) if x + 1 < width else columns) - 1
