"""Refreshes of views: at once, or a few at a time while the engine runs, so that no turn of the event loop is long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from PySide6.QtCore import QObject, QTimer
from shiboken6 import isValid

TURN_S = 0.003  # of refreshing in one turn of the event loop; what they repaint is painted in it as well


class RefreshQueue(QObject):
    """What views ask for inside `spread()` waits in the order of asking, once for each slot, and is done in the next
    turns of the event loop. Anything else is done at once."""

    def __init__(self) -> None:
        super().__init__()
        self._due: dict[Callable[[], None], None] = {}
        self._is_spreading = False
        self._timer = QTimer(self)
        self._timer.timeout.connect(self._on_turn)

    @property
    def is_empty(self) -> bool:
        """Whether every view has read what it was told of."""
        return not self._due

    @contextmanager
    def spread(self, *, is_wanted: bool) -> Iterator[None]:
        self._is_spreading = is_wanted
        try:
            yield
        finally:
            self._is_spreading = False

    def ask(self, refresh: Callable[[], None]) -> None:
        """Refresh a view: a bound method of a QObject."""
        if self._is_spreading:
            self._due[refresh] = None
            if not self._timer.isActive():
                self._timer.start(0)
        else:
            self._due.pop(refresh, None)
            refresh()

    def _on_turn(self) -> None:
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
