"""The clock of the window: ticks the controller as often as something can have changed, and rarely when nothing can."""

from __future__ import annotations

import time

from PySide6.QtCore import QObject, Qt, QTimer

from app.control.controller import EAGER_MS, Controller

# While the engine runs, both threads share one interpreter, and what the window does there the engine waits for. Every
# millisecond of it is paid back by this many without words, numbers and pictures, so that the window's share stays near
# 5 %; what moves with every token costs little and goes on meanwhile.
REST_RATIO = 20.0
# Words are not told sooner than they can be read, and not later than they look alive.
SOONEST_MS, LATEST_MS = 250.0, 1500.0


class Clock(QObject):
    """A timer that asks after every tick when the next one is due, and which of them the window can afford whole."""

    def __init__(self, controller: Controller, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._controller = controller
        self._spent = time.thread_time()
        self._ticked = self._told = time.monotonic()
        self._paid_at = 0.0
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._on_timeout)
        controller.woken.connect(self._pace)

    def start(self) -> None:
        self._timer.start(EAGER_MS)

    def stop(self) -> None:
        self._timer.stop()

    def _on_timeout(self) -> None:
        before, self._spent = self._spent, time.thread_time()  # since the last tick: its panels and their painting
        now = time.monotonic()
        if self._controller.is_running:  # at rest nobody waits for the window
            self._paid_at = max(self._paid_at, self._ticked) + (self._spent - before) * REST_RATIO
        self._ticked = now
        rested_ms = (now - self._told) * 1e3
        is_whole = rested_ms >= LATEST_MS or (rested_ms >= SOONEST_MS and now >= self._paid_at)
        if is_whole:
            self._told = now
        self._controller.tick(is_whole=is_whole)
        self._pace()

    def _pace(self) -> None:
        pace_ms = self._controller.pace_ms
        if self._timer.isActive() and self._timer.interval() != pace_ms:
            self._timer.setInterval(pace_ms)
