"""Pictures as matrices, whatever they show: tokens on x, layers, heads, channels or queries on y."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from app.draw.axis import Flags
from app.draw.colormap import Floats, larger, robust_limit
from app.draw.edited import runs, touches
from app.draw.format import brief, exact
from app.draw.ghost import Ghosts, extremes, ghosts, outside_held
from engine.spec.edit import Rows
from engine.spec.lenses import LENSES
from engine.wire.pictures import AttentionPicture, HeadPicture, Picture, WallPicture

LayerName = Callable[[int], str]


class Box(NamedTuple):
    """Positions `start … stop` and rows `first … last`, both ends exclusive. `is_hidden`: masked from attention."""

    start: float
    stop: float
    first: int
    last: int
    is_hidden: bool = False


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

    def has(self, channels: Iterable[int] | None) -> bool:
        """Whether it shows one of these channels, or (None) any; a row of no channels stands for all of its head."""
        if channels is None or self.first_channel is None or self.last_channel is None:
            return True
        return any(self.first_channel <= channel <= self.last_channel for channel in channels)


class MatrixCell(Struct, frozen=True):
    """One cell: what its row shows, the first and the last position of its column, the extremes of its values, and how
    many of its positions were evicted."""

    row: int
    column: int
    place: MatrixRow
    first: int
    last: int
    low: float
    high: float
    num_gone: int = 0

    @property
    def is_gone(self) -> bool:
        """Whether all of its rows were evicted."""
        return self.num_gone > self.last - self.first

    @property
    def span(self) -> str:
        """Its positions: `5`, or `4…7`."""
        return str(self.first) if self.first == self.last else f"{self.first}…{self.last}"

    def text(self, write: Callable[[float], str] = exact) -> str:
        """Its values as text, formatted by `write`."""
        if self.is_gone:
            return "not read" if self.place.is_query else "not held"
        return extremes(self.low, self.high, write)


class Matrix(Struct, frozen=True, eq=False, dict=True):
    """Extremes `[rows, columns]` of cells that cover `per_column` positions, from `start` to `stop`, of the `whole`
    range that exists. `borders`: rows at which another head begins; `names`: labels of rows; `gone`: the evicted
    fraction of each cell; `asked`: the positions that were requested, if not all."""

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
    asked: tuple[int, int] | None = None

    @property
    def extent(self) -> tuple[int, int]:
        """The positions `start … stop` of all columns, the last of which may go on beyond `stop`."""
        return self.start, self.start + self.low.shape[1] * self.per_column

    @property
    def has_extremes(self) -> bool:
        """Whether cells pool several numbers."""
        return not np.array_equal(self.low, self.high, equal_nan=True)

    @cached_property
    def values(self) -> Floats:
        """Each cell's extreme farthest from zero."""
        return larger(self.low, self.high)

    @cached_property
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

    def at(self, position: float, row: float) -> MatrixCell | None:
        """The cell at a point in positions and rows; None outside."""
        rows, columns = self.low.shape
        column, line = int((position - self.start) // self.per_column), int(row // 1)
        if not (0 <= line < rows and 0 <= column < columns and position < self.stop):
            return None
        start = self.start + column * self.per_column
        first, last = max(start, self.whole[0]), min(start + self.per_column, self.stop) - 1
        share = 0.0 if self.gone is None else self.gone.share[line * len(self.gone.share) // rows, column]
        low, high = float(self.low[line, column]), float(self.high[line, column])
        return MatrixCell(line, column, self.places[line], first, last, low, high, round(share * (last - first + 1)))

    def span_of(self, position: int) -> tuple[int, int] | None:
        """The positions `start … stop` of the column that contains a position; None if there is none."""
        column = (position - self.start) // self.per_column
        first = self.start + column * self.per_column
        return (first, first + self.per_column) if 0 <= column < self.low.shape[1] else None

    def row_of(self, layer: int, head: int, channel: int | None) -> int | None:
        """The row that shows a channel, or if None the first row of a head; None if there is none."""
        channels = None if channel is None else (channel,)
        mine = (n for n, place in enumerate(self.places) if (place.layer, place.head) == (layer, head))
        return next((row for row in mine if self.places[row].has(channels)), None)

    @cached_property
    def _heads(self) -> frozenset[tuple[int, int]]:
        return frozenset((place.layer, place.head) for place in self.places)

    def boxes(self, rows: Rows, lens: str, shared: int, *, is_hidden: bool = False) -> tuple[Box, ...]:
        """Where rows of the cache are in the picture of a lens, `shared` of whose heads read one kv head."""
        heads = {head for head in self._heads if touches(rows, head[0], head[1] // shared, lens)}
        places = enumerate(self.places if heads else ())
        found = (row for row, place in places if (place.layer, place.head) in heads and place.has(rows.channels))
        return tuple(Box(rows.start, rows.stop, first, last, is_hidden) for first, last in runs(found))

    def rows_between(self, first: MatrixCell, last: MatrixCell, lens: str, shared: int) -> Rows:
        """The rows of the cache between two cells of one layer, both included. All heads of several, and all channels
        of a head, are not named one by one."""
        low, high = sorted((first.row, last.row))
        chosen, every = self.places[low : high + 1], {place.head for place in self.places}
        heads = {place.head // shared for place in chosen}
        are_all = len(every) > 1 and heads == {head // shared for head in every}
        channels = None
        if len(every) == 1 and len(chosen) < len(self.places):
            channels = tuple(place.first_channel for place in chosen if place.first_channel is not None)
        return Rows(
            min(first.first, last.first), max(first.last, last.last) + 1, (first.place.layer,),
            None if are_all else tuple(sorted(heads)), channels or None, LENSES[lens].part or "both",
        )  # fmt: skip


def matrix_of(piece: Picture, layer_label: LayerName = "L{}".format) -> Matrix:
    """The matrix of a wall, head or attention picture; `layer_label` gives the label of a layer by its index."""
    match piece:
        case WallPicture():
            return _of_wall(piece, layer_label)
        case HeadPicture():
            return _of_head(piece)
        case AttentionPicture():
            return _of_attention(piece)
    raise TypeError(f"a {type(piece).__name__} is no matrix")


def _of_wall(piece: WallPicture, layer_label: LayerName) -> Matrix:
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


@lru_cache(maxsize=4)
def _of_head(piece: HeadPicture) -> Matrix:
    request, columns = piece.request, piece.positions.size
    start = int(piece.positions[0]) if columns else request.start
    end = start + columns * piece.tokens_per_column
    whole = asked = None
    if not piece.state_shape:  # a state has no tokens
        end = min(end, request.stop, request.num_tokens)
        if request.start > 0 or request.stop < request.num_tokens:
            whole, asked = (0, request.num_tokens), (request.start, request.stop)
    places = tuple(_place(request.lens, request.layer, request.kv_head, n, n) for n in range(piece.low.shape[1]))
    gone = ghosts(None if piece.absent is None else piece.absent[None], start, end, piece.tokens_per_column)
    if LENSES[request.lens].values == "tokens" and piece.is_causal:
        tokens = np.arange(piece.low.shape[1])[:, None] * piece.values_per_row
        behind = tokens >= piece.positions + piece.tokens_per_column
        gone = _with_unread(gone, behind & (piece.high.T == 0), start, piece.tokens_per_column)
    return Matrix(
        piece.low.T, piece.high.T, start, end, piece.tokens_per_column, places, (), str,
        whole or (start, end), gone, asked,
    )  # fmt: skip


@lru_cache(maxsize=4)
def _of_attention(piece: AttentionPicture) -> Matrix:
    request, end, per_column = piece.request, piece.query_position + 1, piece.tokens_per_column
    stop = end if request.stop is None else min(request.stop, end)
    asked = (request.start, stop) if request.start > 0 or stop < end else None
    start = int(piece.positions[0]) if piece.positions.size else 0
    stop = min(start + piece.positions.size * per_column, stop)
    rows = len(piece.weights)
    borders: tuple[int, ...] = ()
    names: Callable[[int], str] = str
    gone = ghosts(piece.absent, start, stop, per_column)
    if is_map(piece):
        per_row = piece.queries_per_row
        firsts = [piece.first_query + row * per_row for row in range(rows)]
        queries = [(first, min(first + per_row, end) - 1) for first in firsts]
        places = tuple(MatrixRow(request.layer, request.head, queries=one, is_query=True) for one in queries)
        names = lambda row: str(queries[row][0])  # noqa: E731
        if piece.is_causal:
            behind = piece.positions > np.array([last for _, last in queries])[:, None]
            gone = _with_unread(gone, behind & (piece.weights == 0), start, per_column)
    else:
        places = tuple(MatrixRow(request.layer, head, is_query=True) for head in range(rows))
        borders = tuple(range(piece.group_size, rows, piece.group_size)) if piece.group_size > 1 else ()
    whole = (start, stop) if asked is None else (0, end)
    return Matrix(piece.weights, piece.weights, start, stop, per_column, places, borders, names, whole, gone, asked)


def _with_unread(gone: Ghosts | None, unread: Flags, start: int, per_column: int) -> Ghosts | None:
    """Evicted cells, and those `[rows, columns]` of a map whose tokens came behind the query: it read none of them, so
    zero is no weight that it gave."""
    if not unread.any():
        return gone
    return Ghosts(np.maximum(unread.astype(np.float32), 0 if gone is None else gone.share), start, per_column)


def is_map(piece: AttentionPicture) -> bool:
    """Whether its rows are the queries of one head; else they are heads."""
    return LENSES[piece.request.lens].values == "tokens"


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
    if matrix.asked is not None or not rows:
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
