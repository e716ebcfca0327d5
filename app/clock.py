"""The clock of the window: ticks the controller as often as something can have changed, and rarely when nothing can."""

from __future__ import annotations

import time

from PySide6.QtCore import QObject, Qt, QTimer

from app.controller import EAGER_MS, RUNNING_MS, Controller

# While the engine runs, a round of the window (events, panels, painting) is followed by this many times its own
# processor time until the next: both threads share one interpreter, and the window's share of it stays near 5 %. It is
# more where a round costs more than the longest pace allows: a picture older than that no longer looks live.
REST_RATIO = 20.0
LONGEST_MS = 500


class Clock(QObject):
    """A timer that asks after every tick when the next one is due, and gives a costly window more time in between."""

    def __init__(self, controller: Controller, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._controller = controller
        self._spent = time.thread_time()
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._on_timeout)
        controller.woken.connect(self._on_woken)

    def start(self) -> None:
        self._timer.start(EAGER_MS)

    def stop(self) -> None:
        self._timer.stop()

    def _on_timeout(self) -> None:
        before, self._spent = self._spent, time.thread_time()  # since the last tick: its panels and their painting
        self._controller.tick()
        self._pace(round_ms=(self._spent - before) * 1e3)

    def _on_woken(self) -> None:
        if self._timer.isActive():
            self._pace()

    def _pace(self, round_ms: float = 0.0) -> None:
        pace_ms = self._controller.pace_ms
        if pace_ms == RUNNING_MS:
            pace_ms = min(LONGEST_MS, max(pace_ms, round(round_ms * REST_RATIO)))
        if self._timer.interval() != pace_ms:
            self._timer.setInterval(pace_ms)
