"""How often a question that costs the engine something is asked again while it runs."""

from __future__ import annotations

import time

from PySide6.QtCore import QObject, QTimer, Signal


class Pace(QObject):
    """Every `request()` is followed by `due`: at once after a pause, else when the interval is over; never lost."""

    due = Signal()

    def __init__(self, interval_ms: int, parent: QObject | None = None) -> None:
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
