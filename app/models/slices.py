"""The newest picture of each kind that the engine sent."""

from __future__ import annotations

import time
from collections import deque

from PySide6.QtCore import QObject, Signal

from engine.wire.records import AttentionSlice, HeadSlice, OutliersSlice, RowSlice, TableSlice, WallSlice

WALL, HEAD, ATTENTION, ROW, TABLE, OUTLIERS = "wall", "head", "attention", "row", "table", "outliers"
_KEPT_COSTS = 256

# The kinds of slice that a view of this window shows.
Picture = WallSlice | HeadSlice | AttentionSlice | RowSlice | TableSlice | OutliersSlice


def kind_of(piece: Picture) -> str:
    """Which of the six a slice is."""
    match piece:
        case WallSlice():
            return WALL
        case HeadSlice():
            return HEAD
        case AttentionSlice():
            return ATTENTION
        case RowSlice():
            return ROW
        case TableSlice():
            return TABLE
        case OutliersSlice():
            return OUTLIERS


def cost_of(piece: Picture) -> float:
    """Milliseconds that a slice took; a page table is bookkeeping that lay ready."""
    return 0.0 if isinstance(piece, TableSlice) else piece.took_ms


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
        self._costs: deque[tuple[float, float]] = deque(maxlen=_KEPT_COSTS)

    def put(self, piece: Picture) -> None:
        match piece:
            case WallSlice():
                self.wall = piece
            case HeadSlice():
                self.head = piece
            case AttentionSlice():
                self.attention = piece
            case RowSlice():
                self.row = piece
            case TableSlice():
                self.table = piece
            case OutliersSlice():
                self.outliers = piece
        self._costs.append((time.time(), cost_of(piece)))
        self.changed.emit(kind_of(piece))

    def cost_ms(self, since: float, until: float) -> float:
        """What slices cost the engine between two wall-clock times."""
        return sum(took for when, took in self._costs if since <= when <= until)

    def clear(self) -> None:
        self.wall = self.head = self.attention = self.row = self.table = self.outliers = None
        self._costs.clear()
        for kind in (WALL, HEAD, ATTENTION, ROW, TABLE, OUTLIERS):
            self.changed.emit(kind)
