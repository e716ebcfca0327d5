"""The clock of the window: ticks the controller as often as something can have changed, and rarely when nothing can."""

from __future__ import annotations

import time

from PySide6.QtCore import QObject, Qt, QTimer

from app.controller import EAGER_MS, RUNNING_MS, Controller

# While the engine runs, a round of the window (events, panels, painting) is followed by this many times its own
# processor time until the next: both threads share one interpreter, and the window's share of it stays near 4 %. It is
# more where a round costs more than the longest pace allows: a picture older than that no longer looks live.
REST_RATIO = 25.0
LONGEST_MS = 500
# A round with words and numbers costs several without: the next one with words comes after this many times its cost,
# and not sooner than words can be read.
WORDS_REST_RATIO = 40.0
WORDS_MS, LONGEST_WORDS_MS = 250, 1000


class Clock(QObject):
    """A timer that asks after every tick when the next one is due, and gives a costly window more time in between."""

    def __init__(self, controller: Controller, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._controller = controller
        self._spent = time.thread_time()
        self._had_words = False
        self._words_due = 0.0
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
        now, round_ms = time.monotonic(), (self._spent - before) * 1e3
        if self._had_words:
            self._words_due = now + min(LONGEST_WORDS_MS, max(WORDS_MS, round_ms * WORDS_REST_RATIO)) / 1e3
        self._had_words = now >= self._words_due
        self._controller.tick(has_words=self._had_words)
        self._pace(round_ms)

    def _on_woken(self) -> None:
        if self._timer.isActive():
            self._pace()

    def _pace(self, round_ms: float = 0.0) -> None:
        pace_ms = self._controller.pace_ms
        if pace_ms == RUNNING_MS:
            pace_ms = min(LONGEST_MS, max(pace_ms, round(round_ms * REST_RATIO)))
        if self._timer.interval() != pace_ms:
            self._timer.setInterval(pace_ms)
