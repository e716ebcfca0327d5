"""A menu that opens where it was asked for, below lines that say what is there."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import QObject, QPoint, Qt
from PySide6.QtWidgets import QMenu, QWidget

from app.control.actions import Actions
from app.models import Models


class PlaceMenu(QObject):
    """Groups of actions by name below `words`; `name` is that of the menu's object."""

    name = ""

    def __init__(self, models: Models, actions: Actions, parent: QWidget) -> None:
        super().__init__(parent)
        self._models = models
        self._actions = actions
        self._parent = parent

    def open_at(self, place: QPoint) -> None:
        """Show it at a place of the screen."""
        menu = QMenu(self._parent)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.setObjectName(self.name)
        menu.setToolTipsVisible(True)
        for line in self.words():
            menu.addAction(line.replace("&", "&&")).setEnabled(False)
        for group in self.groups():
            menu.addSeparator()
            menu.addActions([self._actions[name] for name in group])
        menu.popup(place)

    def words(self) -> tuple[str, ...]:
        """What is there, line by line."""
        raise NotImplementedError

    def groups(self) -> Iterable[Iterable[str]]:
        """The names of the actions that are offered, group by group."""
        raise NotImplementedError
