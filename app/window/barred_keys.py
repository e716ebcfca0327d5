"""Says why, when the key of a disabled action is pressed: Qt delivers such a key to nobody."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Signal
from PySide6.QtGui import QKeyEvent, QKeySequence
from PySide6.QtWidgets import QWidget

from app.control.actions import Actions


class BarredKeys(QObject):
    """Listens to keys that no widget handled. Signals: `told(text)`, why the action is not possible; `lifted(text)`,
    that this reason no longer holds."""

    told = Signal(str)
    lifted = Signal(str)

    def __init__(self, actions: Actions, window: QWidget) -> None:
        super().__init__(window)
        self._actions = actions
        self._key, self._why = QKeySequence(), ""
        actions.refreshed.connect(self._on_refreshed)
        window.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if not isinstance(event, QKeyEvent) or event.type() != QEvent.Type.KeyPress or event.isAutoRepeat():
            return super().eventFilter(watched, event)
        key = QKeySequence(event.keyCombination())
        if why := self._actions.why_not(key):
            self._key, self._why = key, why
            self.told.emit(why)
        return super().eventFilter(watched, event)

    def _on_refreshed(self) -> None:
        if self._why and self._actions.why_not(self._key) != self._why:
            self.lifted.emit(self._why)
            self._why = ""
