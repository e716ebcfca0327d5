"""Keys of the window's actions while something small is open above it, which Qt gives to that alone."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QKeyEvent, QKeySequence
from PySide6.QtWidgets import QApplication, QWidget


class PopupKeys(QObject):
    """A key of the window that the popup has no use for closes it and acts; where its action is disabled, the window
    says why, as without the popup."""

    def __init__(self, popup: QWidget) -> None:
        super().__init__(popup)
        self._popup = popup
        popup.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if not isinstance(event, QKeyEvent) or event.type() != QEvent.Type.KeyPress:
            return False
        if event.key() == Qt.Key.Key_Escape:  # closes the popup and no more, although it stops a run in the window
            return False
        key, below = QKeySequence(event.keyCombination()), self._popup.parentWidget()
        window = below.window() if below is not None else None
        action = next((each for each in window.actions() if key in each.shortcuts()), None) if window else None
        if window is None or action is None:
            return False
        self._popup.close()
        if action.isEnabled():
            action.trigger()
        else:
            QApplication.sendEvent(window, event)
        return True
