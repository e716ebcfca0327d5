"""Which rows a rule dropped, by which score, and what each row is worth."""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

from app.models import Models
from app.theme import Theme
from app.views.truth_panel import TruthPanel


class EvictedView(TruthPanel):
    """Which rows a rule dropped, by which score, and what each row is worth."""

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, "Why evicted", parent)
        self._models = models
        self.set_empty(self.tr("No row was dropped"))
