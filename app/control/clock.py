"""The window's clock: ticks the controller often while something can change, and rarely while nothing can; and Python's
garbage, which is collected between two events."""

from __future__ import annotations

import math
import time

from PySide6.QtCore import QObject, Qt, QTimer, Signal

from app.control.controller import EAGER_MS, RUNNING_MS, Controller
from engine.garbage import garbage

RUNG_MS = 100  # tick interval while the engine runs and announces its events: polling is a fallback then
WORDS_MS = 250.0  # texts and numbers are updated at most this often, so that they can be read


class TickClock(QObject):
    """A timer that sets its next interval after every tick, and decides which ticks update texts.

    The client calls `ring()`, from any thread, when it has events: the next tick then follows at once, or while the
    engine runs, as soon as the last one is a frame ago.
    """

    _rung = Signal()

    def __init__(self, controller: Controller, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._controller = controller
        self._words_due = time.monotonic() + WORDS_MS / 1e3
        self._ticked = 0.0
        self._is_rung = False  # the client announces its events, so frequent polling is not needed
        self._timer = QTimer(self, timerType=Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._on_timeout)
        controller.waiting.woken.connect(self._set_interval)
        self._rung.connect(self._on_rung, Qt.ConnectionType.QueuedConnection)

    def start(self) -> None:
        self._timer.start(EAGER_MS)

    def stop(self) -> None:
        self._timer.stop()

    def ring(self) -> None:
        """Announce that there are events; may be called from any thread."""
        self._rung.emit()

    def _on_rung(self) -> None:
        self._is_rung = True
        if self._timer.isActive():
            since_ms = (time.monotonic() - self._ticked) * 1e3
            frame_ms = self._controller.frame_ms
            self._timer.setInterval(max(0, min(frame_ms, math.ceil(frame_ms - since_ms))))

    def _on_timeout(self) -> None:
        now = self._ticked = time.monotonic()
        are_words_due = now >= self._words_due
        if are_words_due:  # counted from when they were due and not from this tick, or the delays would add up
            self._words_due = max(self._words_due, now - WORDS_MS / 1e3) + WORDS_MS / 1e3
        self._controller.tick(with_words=are_words_due, pictures_first=True)
        self._set_interval()

    def _set_interval(self) -> None:
        interval_ms = self._controller.interval_ms
        if self._is_rung and interval_ms == RUNNING_MS:
            interval_ms = RUNG_MS
        if self._timer.isActive() and self._timer.interval() != interval_ms:
            self._timer.setInterval(interval_ms)


EVERY_MS = 100


class GarbageTimer(QObject):
    """Takes over automatic collection from `start` to `stop` (see `engine.garbage`)."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._timer = QTimer(self, interval=EVERY_MS)
        self._timer.timeout.connect(garbage.collect_due)

    def start(self) -> None:
        garbage.own()
        self._timer.start()

    def stop(self) -> None:
        self._timer.stop()
        garbage.disown()
