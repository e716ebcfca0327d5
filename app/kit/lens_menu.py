"""The choice of a lens for a picture: a button with a menu, made from the table of lenses."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import Signal
from PySide6.QtGui import QAction, QActionGroup
from PySide6.QtWidgets import QMenu, QToolButton

from app.kit.labels import plain_tip
from engine.spec.lenses import LENSES, Lens


class LensMenu(QToolButton):
    """Names the lens of the picture shown; its menu has all that the picture can have. Signal: `chosen(name)`."""

    chosen = Signal(str)

    def __init__(self, lenses: Iterable[Lens]) -> None:
        super().__init__()
        self.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.setToolTip("What is drawn of each row")
        menu = QMenu(self)
        menu.setToolTipsVisible(True)
        self._actions = QActionGroup(menu)
        for lens in lenses:
            action = self._actions.addAction(f"{lens.words}  ({lens.label})")
            action.setData(lens.name)
            action.setCheckable(True)
            action.setToolTip(plain_tip(lens.formula))
            menu.addAction(action)
        self._actions.triggered.connect(self._on_triggered)
        self.setMenu(menu)
        self.show_lens("keys")

    def show_lens(self, name: str) -> None:
        """Name the lens of the picture that is shown."""
        lens = LENSES[name]
        self.setText(f"{lens.label} ▾")
        self.setAccessibleName(f"Lens: {lens.words}")
        for action in self._actions.actions():
            action.setChecked(action.data() == name)

    def _on_triggered(self, action: QAction) -> None:
        self.chosen.emit(str(action.data()))
