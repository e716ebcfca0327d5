"""Refreshes views at once, or while the engine runs a few at a time, so that no turn of the event loop takes long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from PySide6.QtCore import QObject, QTimer
from shiboken6 import isValid

TURN_S = 0.003  # time for refreshes in one turn of the event loop; painting them takes further time in the same turn


class RefreshQueue(QObject):
    """A refresh asked for inside `spread()` is queued, once per slot, and done in one of the next turns of the event
    loop; outside of it a refresh is done at once."""

    def __init__(self) -> None:
        super().__init__()
        self._due: dict[Callable[[], None], None] = {}
        self._is_spreading = False
        self._timer = QTimer(self)
        self._timer.timeout.connect(self.on_turn)

    @property
    def is_empty(self) -> bool:
        """Whether no refresh is queued."""
        return not self._due

    @contextmanager
    def spread(self, *, is_wanted: bool) -> Iterator[None]:
        self._is_spreading = is_wanted
        try:
            yield
        finally:
            self._is_spreading = False

    def ask(self, refresh: Callable[[], None]) -> None:
        """Refresh a view, now or queued; `refresh` is a bound method of a QObject."""
        if self._is_spreading:
            self._due[refresh] = None
            if not self._timer.isActive():
                self._timer.start(0)
        else:
            self._due.pop(refresh, None)
            refresh()

    def on_turn(self) -> None:
        """Do what is queued for as long as a turn of the event loop may last, at least one refresh."""
        until = time.perf_counter() + TURN_S
        while self._due:
            refresh = next(iter(self._due))
            del self._due[refresh]
            if isValid(refresh.__self__):  # type: ignore[attr-defined]
                refresh()
            if time.perf_counter() >= until:
                break
        if not self._due:
            self._timer.stop()
