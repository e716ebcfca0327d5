"""Buttons that are made with what they do."""

from __future__ import annotations

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QPushButton


def push_button(text: str, slot: object, tip: str = "", *, is_small: bool = True) -> QPushButton:
    """A button that calls a slot (or emits a signal), low enough for a row inside a panel unless told otherwise."""
    button = QPushButton(text)
    if is_small:
        button.setObjectName("small")
    button.setToolTip(tip)
    button.clicked.connect(slot)
    return button


class ActionButton(QPushButton):
    """As possible as its action, with the same reason in its tool tip; without one it does nothing. Its own words."""

    def __init__(self, text: str, action: QAction | None = None) -> None:
        super().__init__(text)
        self._action: QAction | None = None
        self.setEnabled(False)
        if action is not None:
            self.set_action(action)

    def set_action(self, action: QAction) -> None:
        """Given once."""
        self._action = action
        self.setAccessibleName(action.text())
        self.clicked.connect(action.trigger)
        action.changed.connect(self._follow)
        self._follow()

    def _follow(self) -> None:
        if self._action is not None:
            self.setEnabled(self._action.isEnabled())
            self.setToolTip(self._action.toolTip())
