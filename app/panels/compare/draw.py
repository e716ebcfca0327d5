"""The pictures of a comparison as matrices, whatever they show: tokens on x, layers, heads and channels on y."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from app.draw import attention as attention_draw
from app.draw import head as head_draw
from app.draw.attention import group_borders, is_map, queries_of
from app.draw.colormap import Floats, larger, robust_limit
from app.draw.format import brief, exact
from app.draw.ghost import Flags, Ghosts, extremes, ghosts, outside_held
from engine.spec.lenses import LENSES
from engine.wire.slices import AttentionSlice, HeadSlice, Slice, WallSlice

LayerName = Callable[[int], str]


class MatrixRow(Struct, frozen=True):
    """What a matrix row shows: a layer, a head (of keys and values, or of queries if `is_query`), and the channels
    `first_channel … last_channel`, or of the attention map the queries; None where a head has one row."""

    layer: int
    head: int
    first_channel: int | None = None
    last_channel: int | None = None
    queries: tuple[int, int] | None = None
    is_query: bool = False

    def words(self, layer_words: LayerName = "layer {}".format) -> str:
        """`layer 3 · head 1 · channel 5`, or `ch. 4…7`; `query head 2 · query 7`."""
        words = f"{layer_words(self.layer)} · {'query ' if self.is_query else ''}head {self.head}"
        if self.queries is not None:
            first, last = self.queries
            return f"{words} · query {first}" if first == last else f"{words} · queries {first}…{last}"
        if self.first_channel is None:
            return words
        if self.last_channel == self.first_channel:
            return f"{words} · channel {self.first_channel}"
        return f"{words} · ch. {self.first_channel}…{self.last_channel}"


class Matrix(Struct, frozen=True, eq=False):
    """Extremes `[rows, columns]` of cells that cover `per_column` positions, from `start` to `stop`, of the `whole`
    range that exists. `borders`: rows at which another head begins; `names`: labels of rows; `gone`: the evicted
    fraction of each cell."""

    low: Floats
    high: Floats
    start: int
    stop: int
    per_column: int
    places: tuple[MatrixRow, ...]
    borders: tuple[int, ...]
    names: Callable[[int], str]
    whole: tuple[int, int]
    gone: Ghosts | None = None

    @property
    def is_part(self) -> bool:
        """Whether the matrix does not cover the whole range."""
        return (self.start, self.stop) != self.whole

    @property
    def has_extremes(self) -> bool:
        """Whether cells pool several numbers."""
        return not np.array_equal(self.low, self.high, equal_nan=True)

    @property
    def values(self) -> Floats:
        """Each cell's extreme farthest from zero."""
        return larger(self.low, self.high)

    @property
    def shown(self) -> Floats:
        """The values, with zero where rows were evicted: these cells are hatched, not marked as NaN."""
        return self.values if self.gone is None else np.where(self.is_gone, np.float32(0), self.values)

    @property
    def is_gone(self) -> Flags:
        """Cells `[rows, columns]` whose rows were all evicted."""
        if self.gone is None:
            return np.zeros(self.low.shape, np.bool_)
        is_gone: Flags = np.repeat(self.gone.share >= 1, len(self.low) // len(self.gone.share), axis=0)
        return is_gone

    def cell(self, position: float, row: float) -> tuple[int, int] | None:
        """(row, column) at a point in positions and rows; None outside."""
        rows, columns = self.low.shape
        column = int((position - self.start) // self.per_column)
        return (int(row), column) if 0 <= row < rows and 0 <= column < columns else None

    def span_of(self, position: int) -> tuple[int, int] | None:
        """The positions `start … stop` of the column that contains a position; None if there is none."""
        column = (position - self.start) // self.per_column
        first = self.start + column * self.per_column
        return (first, first + self.per_column) if 0 <= column < self.low.shape[1] else None

    def positions(self, column: int) -> tuple[int, int]:
        """The first and last existing position of a column."""
        first = self.start + column * self.per_column
        return max(first, self.whole[0]), min(first + self.per_column, self.stop) - 1

    def row_of(self, layer: int, head: int, channel: int | None) -> int | None:
        """The row that shows a channel, or if None the first row of a head; None if there is none."""
        for row, place in enumerate(self.places):
            if (place.layer, place.head) == (layer, head) and _has(place, channel):
                return row
        return None


def _has(place: MatrixRow, channel: int | None) -> bool:
    if channel is None or place.first_channel is None or place.last_channel is None:
        return True
    return place.first_channel <= channel <= place.last_channel


def matrix_of(piece: Slice, layer_label: LayerName = "L{}".format) -> Matrix:
    """The matrix of a wall, head or attention slice; `layer_label` gives the label of a layer by its index."""
    match piece:
        case WallSlice():
            return _of_wall(piece, layer_label)
        case HeadSlice():
            return _of_head(piece)
        case AttentionSlice():
            return _of_attention(piece)
    raise TypeError(f"a {type(piece).__name__} is compared by nobody")


def _of_wall(piece: WallSlice, layer_label: LayerName) -> Matrix:
    """Layers below each other; in each its kv heads; in each its channels."""
    columns, rows, per_row = piece.low.shape[2], piece.low.shape[3], piece.dims_per_row
    used = [(index, layer, head) for index, layer in enumerate(piece.layers) for head in range(piece.heads[index])]
    low, high = (
        np.concatenate([array[index, head].T for index, _, head in used])
        if used
        else np.empty((0, columns), np.float32)
        for array in (piece.low, piece.high)
    )
    places = tuple(
        _place(piece.request.lens, layer, head, row * per_row, (row + 1) * per_row - 1)
        for _, layer, head in used
        for row in range(rows)
    )
    borders = tuple(number * rows for number, (_, _, head) in enumerate(used) if number and head == 0)
    absent = np.broadcast_to(outside_held(piece)[:, None], piece.low.shape[:3])
    if piece.absent is not None:
        absent = np.maximum(absent, piece.absent)
    absent = np.array([absent[index, head] for index, _, head in used])
    gone = ghosts(absent, 0, piece.num_tokens, piece.tokens_per_column)
    extent, names = (0, piece.num_tokens), _named(places, layer_label)
    return Matrix(low, high, *extent, piece.tokens_per_column, places, borders, names, extent, gone)


def _of_head(piece: HeadSlice) -> Matrix:
    request, (start, stop) = piece.request, head_draw.extent(piece)
    places = tuple(_place(request.lens, request.layer, request.kv_head, n, n) for n in range(piece.low.shape[1]))
    whole, gone = (0 if head_draw.is_part(piece) else start, request.num_tokens), head_draw.ghosts_of(piece)
    return Matrix(piece.low.T, piece.high.T, start, stop, piece.tokens_per_column, places, (), str, whole, gone)


def _of_attention(piece: AttentionSlice) -> Matrix:
    (start, stop), end = attention_draw.extent(piece), piece.query_position + 1
    heads, layer = piece.weights.shape[0], piece.request.layer
    borders: tuple[int, ...] = ()
    if is_map(piece):
        head = piece.request.head
        places = tuple(MatrixRow(layer, head, queries=queries_of(piece, n), is_query=True) for n in range(heads))
    else:
        places = tuple(MatrixRow(layer, head, is_query=True) for head in range(heads))
        borders = group_borders(heads, piece.group_size)
    gone = attention_draw.ghosts_of(piece)
    is_part = piece.request.start > 0 or (piece.request.stop or end) < end
    whole, per_column = (0 if is_part else start, end), piece.tokens_per_column
    names = str if not is_map(piece) else lambda row: str(queries_of(piece, row)[0])
    return Matrix(piece.weights, piece.weights, start, stop, per_column, places, borders, names, whole, gone)


def _place(lens: str, layer: int, head: int, first: int, last: int) -> MatrixRow:
    """The row of some channels; of a lens with one value for each token there are none."""
    row = MatrixRow(layer, head, is_query=LENSES[lens].heads == "query")
    return replace(row, first_channel=first, last_channel=last) if LENSES[lens].values == "dims" else row


def _named(places: tuple[MatrixRow, ...], layer_label: LayerName) -> Callable[[int], str]:
    def name(row: int) -> str:
        """`L3·1`: the layer and kv head of a row."""
        return f"{layer_label(places[row].layer)}·{places[row].head}" if 0 <= row < len(places) else ""

    return name


def on_same_positions(*matrices: Matrix) -> tuple[Matrix, ...]:
    """Extend matrices to the same positions: columns that one does not have, although all were requested, are shown as
    evicted."""
    first, last = min(matrix.whole[0] for matrix in matrices), max(matrix.whole[1] for matrix in matrices)
    return tuple(_widened(matrix, first, last) for matrix in matrices)


def _widened(matrix: Matrix, first: int, last: int) -> Matrix:
    rows, columns = matrix.low.shape
    end = matrix.start + columns * matrix.per_column
    if matrix.is_part or not rows:
        return replace(matrix, whole=(first, last))
    before, after = (max(0, -(-room // matrix.per_column)) for room in (matrix.start - first, last - end))
    if not before and not after:
        return replace(matrix, whole=(first, last))
    sides = ((0, 0), (before, after))
    low, high = (np.pad(array, sides) for array in (matrix.low, matrix.high))
    share = matrix.gone.share if matrix.gone is not None else np.zeros((1, columns), np.float32)
    start = matrix.start - before * matrix.per_column
    gone = Ghosts(np.pad(share, sides, constant_values=1.0), start, matrix.per_column)
    stop = max(matrix.stop, last)
    return replace(matrix, low=low, high=high, start=start, stop=stop, whole=(first, last), gone=gone)


def overlaid(a: Matrix, b: Matrix) -> Matrix:
    """The mean of A and B, cell by cell; for pooled cells the means of their lows and of their highs. A cell is evicted
    where one of both is."""
    at = np.arange(a.low.shape[1]) * a.per_column + a.start
    column = (at - b.start) // b.per_column
    is_there = (column >= 0) & (column < b.low.shape[1])
    column = column.clip(0, max(0, b.low.shape[1] - 1))
    if a.low.shape[0] != b.low.shape[0] or not b.low.shape[1]:
        return a
    is_gone = a.is_gone | b.is_gone[:, column] | ~is_there[None]
    low, high = (
        np.where(is_gone, np.float32(0), (mine + other[:, column]) / np.float32(2))
        for mine, other in ((a.low, b.low), (a.high, b.high))
    )
    gone = Ghosts(is_gone.astype(np.float32), a.start, a.per_column) if is_gone.any() else None
    return replace(a, low=low, high=high, gone=gone)


def layer_limits(*matrices: Matrix) -> Floats:
    """The colour range of each row: one range per layer, the same in all matrices, so that layers with small values are
    as visible as those with large ones."""
    limits = np.ones(max(len(matrix.places) for matrix in matrices), np.float32)
    rows = [np.array([place.layer for place in matrix.places], np.int64) for matrix in matrices]
    for layer in {int(layer) for numbers in rows for layer in numbers}:
        held = [
            matrix.values[numbers == layer][~matrix.is_gone[numbers == layer]]
            for matrix, numbers in zip(matrices, rows, strict=True)
        ]
        limit = robust_limit(np.concatenate(held))
        for numbers in rows:
            limits[: len(numbers)][numbers == layer] = limit
    return limits


def range_words(limits: Floats, sign: str) -> str:
    """`colours ±3.2`; for several layers the smallest and the largest range."""
    least, most = (float(limits.min()), float(limits.max())) if limits.size else (1.0, 1.0)
    if least == most:
        return f"colours {sign}{brief(most)}"
    return f"colours per layer, {sign}{brief(least)} to {sign}{brief(most)}"


def told(matrix: Matrix, position: float, row: float, write: Callable[[float], str] = exact) -> str:
    """Return the values at a point of a matrix as text, formatted by `write`; empty outside the matrix."""
    cell = matrix.cell(position, row)
    if cell is None:
        return ""
    if matrix.is_gone[cell]:
        return "not held"
    return extremes(float(matrix.low[cell]), float(matrix.high[cell]), write)


def spans_told(matrices: Sequence[Matrix], position: float, row: float) -> list[str]:
    """The positions of the cell at a point of each matrix, `5` or `4…7`; empty outside. They may differ, because a side
    that holds fewer rows pools fewer of them in a cell."""
    cells = [matrix.cell(position, row) for matrix in matrices]
    spans = (None if cell is None else matrix.positions(cell[1]) for matrix, cell in zip(matrices, cells, strict=True))
    return ["" if span is None else str(span[0]) if span[0] == span[1] else f"{span[0]}…{span[1]}" for span in spans]
