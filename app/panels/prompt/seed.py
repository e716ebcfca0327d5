"""The field of the seed: from what number tokens are drawn."""

from __future__ import annotations

from PySide6.QtWidgets import QSpinBox, QWidget

from app.kit.theme import font_fixed
from app.kit.units import inset


class SeedField(QSpinBox):
    """A seed, as narrow as the row below the editor needs it."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setRange(0, 2**31 - 1)
        self.setPrefix("seed ")
        self.setFont(font_fixed())
        inset(self)
        self.setAccessibleName("Seed")
        self.setToolTip("The same seed draws the same tokens again")
        self.setFixedWidth(70)
