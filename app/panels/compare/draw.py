"""A picture of either side or of the difference as one matrix: whatever it is of, tokens on x, and rows of places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from app.draw.colormap import Floats, larger
from app.draw.format import exact
from app.draw.ghost import Ghosts, shares
from engine.wire.records import Ints
from engine.wire.slices import AttentionSlice, HeadSlice, Slice, WallSlice


@dataclass(frozen=True)
class Place:
    """What a row of a matrix is: a layer, the kv head (of attention the query head), and the channels
    `first_channel … last_channel`; None of them in attention."""

    layer: int
    head: int
    first_channel: int | None = None
    last_channel: int | None = None

    def words(self) -> str:
        channels = ""
        if self.first_channel is not None:
            many = self.last_channel != self.first_channel
            channels = f" · channel {self.first_channel}" + (f"…{self.last_channel}" if many else "")
        return f"layer {self.layer} · head {self.head}{channels}"


@dataclass(frozen=True, eq=False)
class Matrix:
    """Extremes `[rows, columns]` of cells of `per_column` positions from `start` to `stop`; `borders` are the rows at
    which another head begins, `names` what stands beside a row, `gone` the part of each cell that was dropped."""

    low: Floats
    high: Floats
    start: int
    stop: int
    per_column: int
    places: tuple[Place, ...]
    borders: tuple[int, ...]
    names: Callable[[int], str]
    gone: Ghosts | None = None

    @property
    def values(self) -> Floats:
        """Of each cell the extreme that is farther from zero."""
        return larger(self.low, self.high)

    @property
    def shown(self) -> Floats:
        """The values, with zero in place of cells that are gone: what is hatched is no number that went wrong."""
        if self.gone is None:
            return self.values
        is_gone = np.repeat(self.gone.share >= 1, len(self.low) // len(self.gone.share), axis=0)
        return np.where(is_gone, np.float32(0), self.values)

    def cell(self, position: float, row: float) -> tuple[int, int] | None:
        """Row and column under a point in positions and rows; None beside the matrix."""
        rows, columns = self.low.shape
        column = int((position - self.start) // self.per_column)
        return (int(row), column) if 0 <= row < rows and 0 <= column < columns else None

    def positions(self, column: int) -> tuple[int, int]:
        """The first and the last position of a column."""
        first = self.start + column * self.per_column
        return first, min(first + self.per_column, self.stop) - 1

    def row_of(self, layer: int, head: int, channel: int | None) -> int | None:
        """The row that shows a place; the first of its head where no channel is named."""
        for row, place in enumerate(self.places):
            if (place.layer, place.head) == (layer, head) and _has(place, channel):
                return row
        return None


def _has(place: Place, channel: int | None) -> bool:
    if channel is None or place.first_channel is None or place.last_channel is None:
        return True
    return place.first_channel <= channel <= place.last_channel


def matrix_of(piece: Slice) -> Matrix:
    """The matrix of a wall, a head or an attention row."""
    match piece:
        case WallSlice():
            return _of_wall(piece)
        case HeadSlice():
            return _of_head(piece)
        case AttentionSlice():
            return _of_attention(piece)
    raise TypeError(f"a {type(piece).__name__} is compared by nobody")


def _of_wall(piece: WallSlice) -> Matrix:
    """Layers below each other, in each the kv heads, in each the channels."""
    columns, rows, per_row = piece.low.shape[2], piece.low.shape[3], piece.dims_per_row
    used = [(index, layer, head) for index, layer in enumerate(piece.layers) for head in range(piece.heads[index])]
    low, high = (
        np.concatenate([array[index, head].T for index, _, head in used])
        if used
        else np.empty((0, columns), np.float32)
        for array in (piece.low, piece.high)
    )
    places = tuple(
        Place(layer, head, row * per_row, (row + 1) * per_row - 1) for _, layer, head in used for row in range(rows)
    )
    names = {number * rows: f"L{layer}" for number, (_, layer, head) in enumerate(used) if head == 0}
    borders = tuple(number * rows for number in range(1, len(used)))
    absent = None if piece.absent is None else np.stack([piece.absent[index, head] for index, _, head in used])
    gone = _gone(absent, 0, piece.num_tokens, piece.tokens_per_column)
    return Matrix(low, high, 0, piece.num_tokens, piece.tokens_per_column, places, borders, _named(names), gone)


def _of_head(piece: HeadSlice) -> Matrix:
    request = piece.request
    start = int(piece.positions[0]) if piece.positions.size else request.start
    stop = min(start + len(piece.positions) * piece.tokens_per_column, request.stop, request.num_tokens)
    places = tuple(Place(request.layer, request.kv_head, n, n) for n in range(piece.low.shape[1]))
    gone = _gone(None if piece.absent is None else piece.absent[None], start, stop, piece.tokens_per_column)
    return Matrix(piece.low.T, piece.high.T, start, stop, piece.tokens_per_column, places, (), str, gone)


def _of_attention(piece: AttentionSlice) -> Matrix:
    start = int(piece.positions[0]) if piece.positions.size else 0
    stop = min(start + len(piece.positions) * piece.tokens_per_column, piece.query_position + 1)
    heads = piece.weights.shape[0]
    places = tuple(Place(piece.request.layer, head) for head in range(heads))
    borders = tuple(range(piece.group_size, heads, piece.group_size))
    gone = _gone(piece.absent, start, stop, piece.tokens_per_column)
    return Matrix(piece.weights, piece.weights, start, stop, piece.tokens_per_column, places, borders, str, gone)


def _gone(absent: Ints | None, start: int, stop: int, per_column: int) -> Ghosts | None:
    """From counts `[rows, columns]` of positions without a row; None where all are held."""
    if absent is None or not absent.any():
        return None
    return Ghosts(shares(absent, per_column, stop - start), start, per_column)


def _named(names: dict[int, str]) -> Callable[[int], str]:
    def name(row: int) -> str:
        return names.get(row, "")

    return name


def mean(a: Matrix, b: Matrix) -> Floats:
    """What lies over each other: of each cell the mean of both sides."""
    found: Floats = (a.shown + b.shown) / np.float32(2)
    return found


def number(low: float, high: float) -> str:
    """A cell in figures: one number, or its extremes."""
    return exact(low) if low == high or (low != low and high != high) else f"{exact(low)} … {exact(high)}"
