"""How often a panel of numbers follows a running engine: often enough to see it move, not more than can be read."""

from __future__ import annotations

import time

from PySide6.QtCore import QObject, QTimer, Signal

# A little less than the clock's pace while running, so that a request made on a tick is due on that tick: panels that
# change together are painted together.
INTERVAL_MS = 80


class Pace(QObject):
    """Every `request()` is followed by `due`: at once after a pause, else when the interval is over; never lost."""

    due = Signal()

    def __init__(self, parent: QObject | None = None, interval_ms: int = INTERVAL_MS) -> None:
        super().__init__(parent)
        self._interval_ms = interval_ms
        self._last = float("-inf")
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self._emit)

    def request(self) -> None:
        if self._timer.isActive():
            return
        rest_ms = self._interval_ms - (time.monotonic() - self._last) * 1e3
        if rest_ms <= 0:
            self._emit()
        else:
            self._timer.start(int(rest_ms) + 1)

    def _emit(self) -> None:
        self._last = time.monotonic()
        self.due.emit()
