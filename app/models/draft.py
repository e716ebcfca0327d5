"""The prompt that is being written: whether it can be sent."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal


class Draft(QObject):
    """Why the prompt cannot be sent as it is, in a few words with what to do; empty where it can. The prompt panel
    writes it, actions read it."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._problem = ""

    @property
    def problem(self) -> str:
        return self._problem

    def update(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self.changed.emit()
