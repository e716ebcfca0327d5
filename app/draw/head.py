"""The heat map of one head, tokens on x and channels on y: cell values, evicted rows, and what is at a point."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from app.draw.colormap import Floats, larger
from app.draw.format import exact
from app.draw.ghost import Flags, Ghosts, extremes, ghosts
from app.draw.grid import column_at
from engine.spec.edit import Rows
from engine.spec.lenses import LENSES
from engine.wire.slices import HeadSlice


class HeadCell(Struct, frozen=True):
    """One cell: its column and channel, the positions it covers, and the extremes of its values."""

    column: int
    channel: int
    first_position: int
    last_position: int
    low: float
    high: float
    num_evicted: int = 0

    @property
    def is_gone(self) -> bool:
        """Whether the head has evicted all of the cell's rows."""
        return self.num_evicted > self.last_position - self.first_position


def ghosts_of(piece: HeadSlice) -> Ghosts | None:
    """The evicted columns of the head, and the fraction of evicted rows where columns pool several; None if there are
    none."""
    return ghosts(None if piece.absent is None else piece.absent[None], *extent(piece), piece.tokens_per_column)


def gone(piece: HeadSlice) -> Flags:
    """`[columns]`: columns whose rows were all evicted."""
    found = ghosts_of(piece)
    return np.zeros(piece.low.shape[0], dtype=np.bool_) if found is None else found.share[0] >= 1


def head_values(piece: HeadSlice) -> Floats:
    """`[D, columns]`: each cell's value farthest from zero."""
    return larger(piece.low, piece.high).T


def cell_at(piece: HeadSlice, position: float, channel: float) -> HeadCell | None:
    """The cell at a point in positions and channels; None outside the picture."""
    columns, channels = piece.low.shape
    if not columns:
        return None
    column = int((position - int(piece.positions[0])) // piece.tokens_per_column)
    row = int(channel // 1)
    if not (0 <= column < columns and 0 <= row < channels):
        return None
    first = int(piece.positions[column])
    last = min(first + piece.tokens_per_column, extent(piece)[1]) - 1
    evicted = 0 if piece.absent is None else int(piece.absent[column])
    return HeadCell(column, row, first, last, float(piece.low[column, row]), float(piece.high[column, row]), evicted)


def area_between(piece: HeadSlice, start: tuple[float, float], stop: tuple[float, float]) -> Rows | None:
    """The rows between two cells, both included, each given by position and channel; None if one is outside."""
    first, last = cell_at(piece, *start), cell_at(piece, *stop)
    if first is None or last is None:
        return None
    low, high = sorted((first.channel, last.channel))
    channels = tuple(range(low, high + 1))
    request = piece.request
    return Rows(
        min(first.first_position, last.first_position), max(first.last_position, last.last_position) + 1,
        (request.layer,), (request.kv_head,), None if len(channels) == piece.low.shape[1] else channels,
        LENSES[request.lens].part or "both",
    )  # fmt: skip


def is_part(piece: HeadSlice) -> bool:
    """Whether fewer positions were requested than there are."""
    if piece.state_shape:
        return False
    return piece.request.start > 0 or piece.request.stop < piece.request.num_tokens


def extent(piece: HeadSlice) -> tuple[int, int]:
    """The positions `start … stop` of the picture, which begins later where a window evicted the first ones."""
    if not piece.positions.size:
        return piece.request.start, piece.request.start
    start = int(piece.positions[0])
    end = start + piece.positions.size * piece.tokens_per_column
    if piece.state_shape:  # a state has no tokens
        return start, end
    return start, min(end, piece.request.stop, piece.request.num_tokens)


def readout(piece: HeadSlice, cell: HeadCell) -> str:
    """`K[3, 1, 13, 5] = -1.8342`: layer, kv head, position, channel and the exact value in the cache; without a value
    if the row was evicted."""
    where = str(cell.first_position)
    if cell.last_position > cell.first_position:
        where = f"{cell.first_position}…{cell.last_position}"
    first_value = cell.channel * piece.values_per_row
    values = f"{first_value}…{first_value + piece.values_per_row - 1}" if piece.values_per_row > 1 else str(first_value)
    place = f"{piece.tensor_label}[{piece.request.layer}, {piece.request.kv_head}, {where}, {values}]"
    if cell.is_gone:
        return place
    return f"{place} = {extremes(cell.low, cell.high, exact)}"


def span_of(piece: HeadSlice, position: int) -> tuple[int, int] | None:
    """The positions `start … stop` of the column that contains a position; None if there is none."""
    return column_at(position, *extent(piece), piece.tokens_per_column)
