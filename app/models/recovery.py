"""The session of a killed window, while it is offered to be recovered."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from PySide6.QtCore import QObject, Signal

from engine.saved.session import SavedSession


class UnclosedSession(Struct, frozen=True, eq=False):
    """The session in a journal, when that was last written (seconds since 1970), and what is wrong with it, if
    anything."""

    path: Path
    session: SavedSession
    written: float
    problem: str = ""


class Recovery(QObject):
    """Holds the session that is offered; None if there is none. Signal: `changed()`."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._offered: UnclosedSession | None = None

    @property
    def offered(self) -> UnclosedSession | None:
        return self._offered

    def offer(self, left: UnclosedSession | None) -> None:
        self._offered = left
        self.changed.emit()
