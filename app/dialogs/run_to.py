"""How many steps to run."""

from __future__ import annotations

from PySide6.QtWidgets import QSpinBox, QWidget

from app.kit.dialog import QuestionDialog
from app.kit.theme import font_fixed
from app.kit.units import inset


class RunToDialog(QuestionDialog):
    """Intent: `chosen(num_steps)`."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__("Run steps", parent)
        self._count = QSpinBox()
        self._count.setRange(1, 10_000_000)
        self._count.setValue(32)
        self._count.setFont(font_fixed())
        inset(self._count)
        self.form.addRow("Steps to run, then rest", self._count)
        self.ok.setText("Run")

    def answer(self) -> int:
        return self._count.value()
