"""Whether the prompt in the editor can be sent."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal


class Draft(QObject):
    """`problem` says in a few words why the prompt cannot be sent and what to do; empty if it can. The prompt panel
    writes it and actions read it."""

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
