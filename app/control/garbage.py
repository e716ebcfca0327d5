"""Collects Python's garbage in the window's thread, between two events."""

from __future__ import annotations

from PySide6.QtCore import QObject, QTimer

from engine.garbage import garbage

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
