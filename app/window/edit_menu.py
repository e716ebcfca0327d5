"""The menu of what is selected in a picture: what an edit would touch, in words and bytes, and the edits."""

from __future__ import annotations

from PySide6.QtCore import QObject, QPoint, Qt
from PySide6.QtWidgets import QMenu, QWidget

from app.control.actions import Actions
from app.draw.edit_words import rows_words, size_words
from app.models import Models
from app.models.chosen_rows import NOTHING, chosen_rows


class EditMenu(QObject):
    """Opens the Edit menu where it was asked for, below a line that says what is selected."""

    def __init__(self, models: Models, actions: Actions, parent: QWidget) -> None:
        super().__init__(parent)
        self._models = models
        self._actions = actions
        self._parent = parent

    def open_at(self, place: QPoint) -> None:
        """Show it at a place of the screen."""
        menu = QMenu(self._parent)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.setObjectName("edits")
        menu.setToolTipsVisible(True)
        for line in self.words():
            menu.addAction(line.replace("&", "&&")).setEnabled(False)
        if self._models.selection.now.position is not None:
            menu.addSeparator()
            menu.addActions([self._actions[name] for name in ("run.at_token", "run.go_on", "run.to")])
        undo, *groups, parts, notes = self._actions.menus["&Edit"]
        for group in (parts, *groups, notes, undo):
            menu.addSeparator()
            menu.addActions([self._actions[action.name] for action in group])
        menu.popup(place)

    def words(self) -> tuple[str, ...]:
        """What is selected, and how much that is."""
        rows, model = chosen_rows(self._models), self._models.status.model
        if rows is None or model is None:
            return (f"Nothing is selected: {NOTHING}",)
        return rows_words(rows), size_words(rows, model.geometry, model.dtype)
