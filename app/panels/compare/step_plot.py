"""A plot whose points are steps."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from app.kit.changes import connect_all
from app.kit.chart.plot import Plot
from app.panels.compare.chart import StepChart


class StepPlot(Plot):
    """`step_pointed(step or None)` and `step_picked(step)`, where a plot counts its points."""

    step_pointed = Signal(object)
    step_picked = Signal(int)

    def __init__(self, name: str, parent: QWidget | None = None) -> None:
        super().__init__(name, parent)
        self._steps: tuple[int, ...] = ()

    def connect_steps(self, pointed: object, picked: object, told: object) -> None:
        """Give its signals to the slots or signals of the panel that it stands in."""
        self.connect_to(self._on_pointed, self._on_picked, told)
        connect_all((self.step_pointed, pointed), (self.step_picked, picked))

    def show_steps(self, found: StepChart) -> None:
        self._steps = found.steps
        self.show_chart(found.chart)

    def _on_pointed(self, index: int | None) -> None:
        self.step_pointed.emit(self._steps[index] if index is not None and index < len(self._steps) else None)

    def _on_picked(self, index: int) -> None:
        if index < len(self._steps):
            self.step_picked.emit(self._steps[index])
