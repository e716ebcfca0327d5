"""A session that a window left behind without closing it, while it is offered."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from PySide6.QtCore import QObject, Signal

from engine.saved.session import SavedSession


class LeftSession(Struct, frozen=True, eq=False):
    """What the file has, when it was written last (seconds since 1970), and what is wrong with it, if anything is."""

    path: Path
    session: SavedSession
    written: float
    problem: str = ""


class Recovery(QObject):
    """Holds what is offered, None where nothing is."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._offered: LeftSession | None = None

    @property
    def offered(self) -> LeftSession | None:
        return self._offered

    def offer(self, left: LeftSession | None) -> None:
        self._offered = left
        self.changed.emit()
