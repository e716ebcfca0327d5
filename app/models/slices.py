"""The newest picture of each kind that the engine sent, whole or put together from updates."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from PySide6.QtCore import QObject, Signal

from engine.wire.commands import (
    AttentionRequest,
    HeadRequest,
    OutliersRequest,
    RowRequest,
    TableRequest,
    WallRequest,
)
from engine.wire.records import Floats
from engine.wire.slices import (
    AttentionSlice,
    HeadSlice,
    HeadUpdate,
    OutliersSlice,
    RowSlice,
    SliceUpdate,
    TableSlice,
    Unchanged,
    WallSlice,
    WallUpdate,
)

WALL, HEAD, ATTENTION, ROW, TABLE, OUTLIERS = "wall", "head", "attention", "row", "table", "outliers"
_KEPT_COSTS = 256

# The kinds of slice that a view of this window shows.
Picture = WallSlice | HeadSlice | AttentionSlice | RowSlice | TableSlice | OutliersSlice


_KIND_OF_REQUEST: dict[type, str] = {
    WallRequest: WALL,
    HeadRequest: HEAD,
    AttentionRequest: ATTENTION,
    RowRequest: ROW,
    TableRequest: TABLE,
    OutliersRequest: OUTLIERS,
}


def kind_of(piece: Picture | SliceUpdate) -> str:
    """Which of the six a slice, or an update of one, is."""
    return _KIND_OF_REQUEST[type(piece.request)]


def cost_of(piece: Picture | SliceUpdate) -> float:
    """Milliseconds that a slice took; a page table is bookkeeping that lay ready."""
    return 0.0 if isinstance(piece, TableSlice | Unchanged) else piece.took_ms


class ColumnBuffer:
    """An array that grows along one axis: columns are written in place, and room is made by half of what there is."""

    def __init__(self, array: Floats, axis: int) -> None:
        self._array, self._axis = array, axis
        self._length = array.shape[axis]
        self._is_own = False  # the first array came with a slice, and is not written to

    def put(self, first: int, columns: Floats) -> Floats:
        """The array with these columns from `first` on, in place of those that it had there; read-only."""
        needed = first + columns.shape[self._axis]
        if needed > self._array.shape[self._axis] or not self._is_own:
            self._grow(max(needed, self._length * 3 // 2))
        self._array[self._part(first, needed)] = columns
        self._length = needed
        shown = self._array[self._part(0, needed)]
        shown.flags.writeable = False
        return shown

    def _grow(self, capacity: int) -> None:
        shape = list(self._array.shape)
        shape[self._axis] = capacity
        made = np.empty(shape, self._array.dtype)
        made[self._part(0, self._length)] = self._array[self._part(0, self._length)]
        self._array, self._is_own = made, True

    def _part(self, start: int, stop: int) -> tuple[slice, ...]:
        return (*[slice(None)] * self._axis, slice(start, stop))


@dataclass(eq=False)
class Extended:
    """A wall or a head that updates are put into: the slice as it is now, and the buffers of its cells."""

    piece: Picture
    low: ColumnBuffer
    high: ColumnBuffer

    @classmethod
    def of(cls, piece: Picture) -> Extended | None:
        """None for kinds that are always sent whole."""
        if not isinstance(piece, WallSlice | HeadSlice):
            return None
        axis = 2 if isinstance(piece, WallSlice) else 0
        return cls(piece, ColumnBuffer(piece.low, axis), ColumnBuffer(piece.high, axis))

    def take(self, update: WallUpdate | HeadUpdate) -> Picture:
        """The slice with the update in it."""
        first = update.first_column
        low, high = self.low.put(first, update.low), self.high.put(first, update.high)
        match self.piece, update:
            case WallSlice(), WallUpdate():
                self.piece = _wall_with(self.piece, update, low, high)
            case HeadSlice(), HeadUpdate():
                self.piece = _head_with(self.piece, update, low, high)
        return self.piece


def _wall_with(piece: WallSlice, update: WallUpdate, low: Floats, high: Floats) -> WallSlice:
    return replace(
        piece,
        request=update.request,
        low=low,
        high=high,
        num_tokens=update.request.num_tokens,
        magnitudes=update.magnitudes,
        other_magnitudes=update.other_magnitudes,
        took_ms=update.took_ms,
    )


def _head_with(piece: HeadSlice, update: HeadUpdate, low: Floats, high: Floats) -> HeadSlice:
    start, size = int(piece.positions[0]), piece.tokens_per_column
    return replace(
        piece,
        request=update.request,
        low=low,
        high=high,
        positions=start + np.arange(len(low), dtype=np.int64) * size,
        counts=update.counts,
        edges=update.edges,
        limit=update.limit,
        lowest=update.lowest,
        highest=update.highest,
        num_nan=update.num_nan,
        num_inf=update.num_inf,
        magnitudes=update.magnitudes,
        took_ms=update.took_ms,
    )


def unchanged(piece: Picture, update: Unchanged) -> Picture:
    """The same picture, of a later step."""
    request = update.request
    if isinstance(request, WallRequest | TableRequest):
        return replace(piece, request=request, num_tokens=request.num_tokens)
    return replace(piece, request=request)


class Slices(QObject):
    """One slice per kind, newest wins; `changed` carries the kind. Only the controller writes."""

    changed = Signal(str)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.wall: WallSlice | None = None
        self.head: HeadSlice | None = None
        self.attention: AttentionSlice | None = None
        self.row: RowSlice | None = None
        self.table: TableSlice | None = None
        self.outliers: OutliersSlice | None = None
        self._extended: dict[str, Extended | None] = {}
        self._costs: deque[tuple[float, float]] = deque(maxlen=_KEPT_COSTS)

    def put(self, *pieces: Picture | SliceUpdate) -> None:
        """Show slices, or what updates make of those that are shown; each kind is announced once."""
        changed = {kind_of(piece): None for piece in pieces if self._take(piece)}
        for kind in changed:
            self.changed.emit(kind)

    def _take(self, piece: Picture | SliceUpdate) -> bool:
        """False for an update of a picture that is not there."""
        kind = kind_of(piece)
        extended = self._extended.get(kind)
        shown: Picture
        if isinstance(piece, WallUpdate | HeadUpdate):
            if extended is None:
                return False
            shown = extended.take(piece)
        elif isinstance(piece, Unchanged):
            if (before := self._of(kind)) is None:
                return False
            shown = unchanged(before, piece)
            if extended is not None:
                extended.piece = shown
        else:
            shown = piece
            self._extended[kind] = Extended.of(piece)
        setattr(self, kind, shown)
        self._costs.append((time.time(), cost_of(piece)))
        return True

    def _of(self, kind: str) -> Picture | None:
        found: Picture | None = getattr(self, kind)
        return found

    def cost_ms(self, since: float, until: float) -> float:
        """What slices cost the engine between two wall-clock times."""
        return sum(took for when, took in self._costs if since <= when <= until)

    def clear(self) -> None:
        self.wall = self.head = self.attention = self.row = self.table = self.outliers = None
        self._extended.clear()
        self._costs.clear()
        for kind in (WALL, HEAD, ATTENTION, ROW, TABLE, OUTLIERS):
            self.changed.emit(kind)
