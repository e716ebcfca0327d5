"""What a low-bit codec does to K, V, attention and the next token."""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

from app.models import Models
from app.theme import Theme
from app.views.truth_panel import TruthPanel


class DamageView(TruthPanel):
    """What a low-bit codec does to K, V, attention and the next token."""

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, "Codec damage", parent)
        self._models = models
        self.set_empty(self.tr("Send a prompt first"))
