"""Says why, when the key or the button of a disabled action is pressed: Qt delivers them to nobody."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Signal
from PySide6.QtGui import QAction, QKeyEvent, QKeySequence
from PySide6.QtWidgets import QWidget

from app.control.actions import Actions


class BarredKeys(QObject):
    """Listens to keys that no widget handled, and to buttons that are disabled. Signals: `told(text)`, why the action
    is not possible; `lifted(text)`, that this reason no longer holds."""

    told = Signal(str)
    lifted = Signal(str)

    def __init__(self, actions: Actions, window: QWidget) -> None:
        super().__init__(window)
        self._actions = actions
        self._name = self._why = ""
        self._buttons: dict[QObject, str] = {}  # the name of the action that each triggers
        actions.refreshed.connect(self._on_refreshed)
        window.installEventFilter(self)

    def watch(self, button: QWidget, action: QAction | None) -> None:
        """Say why, when this button is clicked while its action is disabled; nothing, if that has no name."""
        if action is not None and action.data() in self._actions.names():
            self._buttons[button] = action.data()
            button.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.MouseButtonPress:
            self._tell(self._buttons.get(watched, ""))
        elif isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress and not event.isAutoRepeat():
            self._tell(self._actions.disabled_by(QKeySequence(event.keyCombination())))
        return super().eventFilter(watched, event)

    def _tell(self, name: str) -> None:
        if name and (why := self._actions.why_not(name)):
            self._name, self._why = name, why
            self.told.emit(why)

    def _on_refreshed(self) -> None:
        if self._why and self._actions.why_not(self._name) != self._why:
            self.lifted.emit(self._why)
            self._why = ""
