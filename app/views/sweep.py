"""Every cache mode on one text: bytes against what they cost in truth."""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

from app.models import Models
from app.theme import Theme
from app.views.truth_panel import TruthPanel


class SweepView(TruthPanel):
    """Every cache mode on one text: bytes against what they cost in truth."""

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, "Sweep", parent)
        self._models = models
        self.set_empty(self.tr("Send a prompt first"))
