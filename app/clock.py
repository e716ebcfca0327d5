"""The clock of the window: ticks the controller as often as something can have changed, and rarely when nothing can."""

from __future__ import annotations

from PySide6.QtCore import QObject, Qt, QTimer

from app.controller import EAGER_MS, Controller


class Clock(QObject):
    """A timer that asks after every tick when the next one is due."""

    def __init__(self, controller: Controller, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._controller = controller
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._on_timeout)
        controller.woken.connect(self._on_woken)

    def start(self) -> None:
        self._timer.start(EAGER_MS)

    def stop(self) -> None:
        self._timer.stop()

    def _on_timeout(self) -> None:
        self._controller.tick()
        self._pace()

    def _on_woken(self) -> None:
        if self._timer.isActive():
            self._pace()

    def _pace(self) -> None:
        if self._timer.interval() != self._controller.pace_ms:
            self._timer.setInterval(self._controller.pace_ms)
