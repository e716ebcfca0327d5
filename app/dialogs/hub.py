"""Which model of the hub to load, and whether it may be fetched."""

from __future__ import annotations

from PySide6.QtWidgets import QCheckBox, QLineEdit, QWidget

from app.kit.dialog import QuestionDialog
from app.kit.theme import font_fixed
from engine.spec.model import ModelSpec


class HubDialog(QuestionDialog):
    """Intent: `chosen(ModelSpec)`."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__("Model by hub name", parent)
        self._name = QLineEdit()
        self._name.setPlaceholderText("organisation/model")
        self._name.setFont(font_fixed())
        self._download = QCheckBox("Allow download if it is not on this computer")
        self.form.addRow("Hub name", self._name)
        self.form.addRow("", self._download)
        self.ok.setText("Load")

    def answer(self) -> ModelSpec:
        return ModelSpec(self._name.text().strip(), allow_download=self._download.isChecked())
