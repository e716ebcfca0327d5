"""The newest picture of each kind that the engine sent, whole or assembled from updates."""

from __future__ import annotations

import time
from collections import deque

import numpy as np
from msgspec.structs import replace
from PySide6.QtCore import QObject, Signal

from engine.wire.pictures import (
    AttentionPicture,
    AttentionRequest,
    CellUpdate,
    HeadPicture,
    HeadRequest,
    OutliersPicture,
    OutliersRequest,
    Picture,
    PictureUpdate,
    RowPicture,
    RowRequest,
    TablePicture,
    TableRequest,
    Unchanged,
    WallPicture,
    WallRequest,
)
from engine.wire.records import Floats, Ints

WALL, HEAD, ATTENTION, ROW, TABLE, OUTLIERS = "wall", "head", "attention", "row", "table", "outliers"
_KEPT_COSTS = 256

Numbers = Floats | Ints

_KIND_OF_REQUEST: dict[type, str] = {
    WallRequest: WALL,
    HeadRequest: HEAD,
    AttentionRequest: ATTENTION,
    RowRequest: ROW,
    TableRequest: TABLE,
    OutliersRequest: OUTLIERS,
}


def kind_of(picture: Picture | PictureUpdate) -> str:
    """The kind of picture (`WALL`, `HEAD`, …) of a picture or an update."""
    return _KIND_OF_REQUEST[type(picture.request)]


def cost_of(picture: Picture | PictureUpdate) -> float:
    """Milliseconds that the engine took for a picture; 0 for a page table, which needs no computing."""
    return 0.0 if isinstance(picture, TablePicture | Unchanged) else picture.took_ms


class ColumnBuffer:
    """An array that grows and shrinks along one axis. The last column and new ones are written in place, with spare
    room of half the length; a change of earlier cells makes a copy, so that arrays handed out before stay valid.
    `empty` is the value of cells not written yet."""

    def __init__(self, array: Numbers, axis: int, empty: float) -> None:
        self._array, self._axis, self._empty = array, axis, empty
        self._start, self._length = 0, array.shape[axis]
        self._is_own = False  # the first array is that of the picture, which must not be written to

    def put(self, num_removed: int, length: int, places: tuple[Ints, ...], cells: Numbers) -> Numbers:
        """Remove the first columns, set the number of columns, and write `cells` at `places`; returns the array,
        read-only."""
        self._start, kept = self._start + num_removed, max(0, self._length - num_removed)
        is_appended = int(places[self._axis].min(initial=kept)) >= kept - 1
        if not (is_appended and self._is_own and self._start + length <= self._array.shape[self._axis]):
            self._make_room(kept, length)
        shown = self._array[self._part(self._start, self._start + length)]
        if length > kept:
            shown[self._part(kept, length)] = self._empty
        shown[places] = cells
        self._length = length
        shown.flags.writeable = False
        return shown

    def _make_room(self, kept: int, length: int) -> None:
        shape = list(self._array.shape)
        shape[self._axis] = max(length, kept * 3 // 2)
        made = np.empty(shape, self._array.dtype)
        made[self._part(0, kept)] = self._array[self._part(self._start, self._start + kept)]
        self._array, self._start, self._is_own = made, 0, True

    def _part(self, start: int, stop: int) -> tuple[slice, ...]:
        return (*[slice(None)] * self._axis, slice(start, stop))


class ExtendedPicture:
    """A wall or head picture to which updates are applied: the current picture, and growing buffers of its cells."""

    def __init__(self, picture: WallPicture | HeadPicture) -> None:
        self.picture: WallPicture | HeadPicture = picture
        axis = 2 if isinstance(picture, WallPicture) else 0
        self._low = ColumnBuffer(picture.low, axis, np.nan)
        self._high = None if picture.high is picture.low else ColumnBuffer(picture.high, axis, np.nan)
        self._absent = None if picture.absent is None else ColumnBuffer(picture.absent, axis, 0)
        holders = picture.holders if isinstance(picture, WallPicture) else None
        self._holders = None if holders is None else ColumnBuffer(holders, 1, 0)

    def take(self, update: CellUpdate) -> WallPicture | HeadPicture:
        """Apply an update; returns the new picture."""
        picture, places = update.picture, tuple(update.places)
        shape = update.num_removed, update.num_columns, places
        low = self._low.put(*shape, picture.low)
        high = low if self._high is None else self._high.put(*shape, picture.high)
        changes: dict[str, Numbers] = {"low": low, "high": high}
        if self._absent is not None and picture.absent is not None:
            changes["absent"] = self._absent.put(*shape, picture.absent)
        if isinstance(picture, HeadPicture):
            columns = np.arange(update.num_columns, dtype=np.int64)
            changes["positions"] = picture.positions[0] + columns * picture.tokens_per_column
        elif self._holders is not None and update.holders_at is not None and picture.holders is not None:
            at = np.ix_(np.arange(2), update.holders_at)
            changes["holders"] = self._holders.put(0, picture.num_tokens, at, picture.holders)
        self.picture = replace(picture, reply_to=update.reply_to, **changes)
        return self.picture


def unchanged(picture: Picture, update: Unchanged) -> Picture:
    """The same picture, marked as that of a later step."""
    request = update.request
    if isinstance(request, WallRequest | TableRequest):
        return replace(picture, request=request, num_tokens=request.num_tokens)
    return replace(picture, request=request)


class Pictures(QObject):
    """One picture per kind; the newest replaces the one before. Signal: `changed(kind)`. Only the controller writes."""

    changed = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self.wall: WallPicture | None = None
        self.head: HeadPicture | None = None
        self.attention: AttentionPicture | None = None
        self.row: RowPicture | None = None
        self.table: TablePicture | None = None
        self.outliers: OutliersPicture | None = None
        self._extended: dict[str, ExtendedPicture | None] = {}
        self._costs: deque[tuple[float, float]] = deque(maxlen=_KEPT_COSTS)

    def put(self, *pictures: Picture | PictureUpdate) -> None:
        """Show pictures, and apply updates to those shown; `changed` is emitted once per kind."""
        changed = {kind_of(picture): None for picture in pictures if self._take(picture)}
        for kind in changed:
            self.changed.emit(kind)

    def _take(self, picture: Picture | PictureUpdate) -> bool:
        """Show a picture or apply an update; False for an update of a picture that is not there."""
        kind = kind_of(picture)
        extended = self._extended.get(kind)
        shown: Picture
        if isinstance(picture, CellUpdate):
            if extended is None:
                return False
            shown = extended.take(picture)
        elif isinstance(picture, Unchanged):
            if (before := self._of(kind)) is None:
                return False
            shown = unchanged(before, picture)
            if extended is not None and isinstance(shown, WallPicture | HeadPicture):
                extended.picture = shown
        else:
            shown = picture
            self._extended[kind] = ExtendedPicture(picture) if isinstance(picture, WallPicture | HeadPicture) else None
        setattr(self, kind, shown)
        self._costs.append((time.time(), cost_of(picture)))
        return True

    def _of(self, kind: str) -> Picture | None:
        found: Picture | None = getattr(self, kind)
        return found

    def cost_ms(self, since: float, until: float) -> float:
        """Milliseconds that pictures cost the engine between two wall-clock times."""
        return sum(took for when, took in self._costs if since <= when <= until)

    def clear(self) -> None:
        self.wall = self.head = self.attention = self.row = self.table = self.outliers = None
        self._extended.clear()
        self._costs.clear()
        for kind in (WALL, HEAD, ATTENTION, ROW, TABLE, OUTLIERS):
            self.changed.emit(kind)
