"""The menu of a step on the timeline: go on from it, or run to a later one; the steps that were found."""

from __future__ import annotations

from PySide6.QtCore import QObject, QPoint, Qt
from PySide6.QtWidgets import QMenu, QWidget

from app.control.actions import Actions
from app.draw.format import thousands
from app.models import Models

GROUPS = (
    ("run.go_on", "run.live"),
    ("run.to", "stops.add", "note.add"),
    ("stops.find", "stops.next", "stops.previous"),
)


class TimelineMenu(QObject):
    """Opens it where it was asked for, below a line that says which step is looked at."""

    def __init__(self, models: Models, actions: Actions, parent: QWidget) -> None:
        super().__init__(parent)
        self._models = models
        self._actions = actions
        self._parent = parent

    def open_at(self, place: QPoint) -> None:
        """Show it at a place of the screen."""
        menu = QMenu(self._parent)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.setObjectName("step")
        menu.setToolTipsVisible(True)
        menu.addAction(self.words()).setEnabled(False)
        for group in GROUPS:
            menu.addSeparator()
            menu.addActions([self._actions[name] for name in group])
        menu.popup(place)

    def words(self) -> str:
        """Which step is looked at."""
        step, latest = self._models.selection.now.step, self._models.timeline.latest
        if step is not None:
            return f"Step {thousands(step)}"
        return "The live step" if latest is not None else "No step was taken"
