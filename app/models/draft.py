"""Whether the prompt in the editor can be sent."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal


class Draft(QObject):
    """`problem` says in a few words why the prompt cannot be sent and what to do; empty if it can. `warning` is the
    same as a sentence, if something is wrong with what is written: an empty prompt has a problem only. The prompt panel
    writes both; actions and the status line read them."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._problem = self._warning = ""

    @property
    def problem(self) -> str:
        return self._problem

    @property
    def warning(self) -> str:
        return self._warning

    def update(self, problem: str, warning: str = "") -> None:
        if (problem, warning) != (self._problem, self._warning):
            self._problem, self._warning = problem, warning
            self.changed.emit()
