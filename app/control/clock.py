"""The window's clock: a frame when something has come from the engine; and Python's garbage, which is collected between
two events."""

from __future__ import annotations

import math
import time

from PySide6.QtCore import QObject, Qt, QTimer, Signal

from app.control.controller import Controller
from engine.garbage import garbage

POLL_MS = 100  # a frame comes at the latest after this time: texts become due, an engine falls silent
HELD_MS = 8  # or after this, where texts were held back for the picture that has just been shown
WORDS_MS = 250.0  # texts and numbers are updated at most this often, so that they can be read


class FrameClock(QObject):
    """Ticks the controller when the client announces events, which it does by `ring()`, from any thread: at once, or
    while the engine runs, as soon as the last frame was `Controller.frame_ms` ago. Decides which frames update
    texts."""

    _rung = Signal()

    def __init__(self, controller: Controller, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._controller = controller
        self._words_due = time.monotonic() + WORDS_MS / 1e3
        self._ticked = 0.0
        self.timer = QTimer(self, timerType=Qt.TimerType.PreciseTimer)
        self.timer.timeout.connect(self.on_frame)
        self._rung.connect(self._on_rung, Qt.ConnectionType.QueuedConnection)

    def start(self) -> None:
        self.timer.start(HELD_MS)

    def stop(self) -> None:
        self.timer.stop()

    def ring(self) -> None:
        """Announce that there are events; may be called from any thread."""
        self._rung.emit()

    def _on_rung(self) -> None:
        if self.timer.isActive():
            since_ms = (time.monotonic() - self._ticked) * 1e3
            frame_ms = self._controller.frame_ms
            self.timer.setInterval(max(0, min(frame_ms, math.ceil(frame_ms - since_ms))))

    def on_frame(self) -> None:
        now = self._ticked = time.monotonic()
        are_words_due = now >= self._words_due
        if are_words_due:  # counted from when they were due and not from this frame, or the delays would add up
            self._words_due = max(self._words_due, now - WORDS_MS / 1e3) + WORDS_MS / 1e3
        self._controller.tick(with_words=are_words_due, pictures_first=True)
        if self.timer.isActive():
            self.timer.setInterval(POLL_MS if self._controller.events.are_models_current else HELD_MS)


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
