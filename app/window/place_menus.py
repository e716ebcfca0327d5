"""Context menus, headed by lines that say what they apply to: a selection, a step, a bookmark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from PySide6.QtCore import QObject, QPoint, Qt, Signal
from PySide6.QtWidgets import QApplication, QMenu, QWidget

from app.control.actions import Actions, declared_in
from app.draw.edited import rows_words, size_words
from app.draw.format import thousands
from app.kit.bookmark_places import PAGE, STEP, TOKEN, place_words, places
from app.models import Models
from app.models.chosen_rows import NOTHING, chosen_rows
from engine.counted import counted
from engine.spec.bookmark import BookmarkTarget

TIMELINE_GROUPS = (
    ("run.here", "run.go_on", "run.live", "run.return"),
    ("run.to", "breakpoints.add", "note.add"),
    ("breakpoints.find", "breakpoints.next", "breakpoints.previous"),
)


class PlaceMenu(QObject):
    """A menu of groups of actions below the lines of `words()`; `name` is the menu's object name."""

    name = ""

    def __init__(self, models: Models, actions: Actions, parent: QWidget) -> None:
        super().__init__(parent)
        self._models = models
        self._actions = actions
        self._parent = parent

    def open_at(self, place: QPoint) -> None:
        """Open the menu at a point of the screen; not if `words()` is empty."""
        if not (lines := self.words()):
            return
        menu = QMenu(self._parent)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.setObjectName(self.name)
        menu.setToolTipsVisible(True)
        for line in lines:
            menu.addAction(line.replace("&", "&&")).setEnabled(False)
        for group in self.groups():
            menu.addSeparator()
            menu.addActions([self._actions[name] for name in group])
        self.add_more(menu)
        menu.popup(place)

    def add_more(self, menu: QMenu) -> None:
        """Add entries after the groups; overridden by subclasses."""

    def words(self) -> tuple[str, ...]:
        """What the menu applies to, line by line."""
        raise NotImplementedError

    def groups(self) -> Iterable[Iterable[str]]:
        """The names of the actions, group by group."""
        raise NotImplementedError


class EditMenu(PlaceMenu):
    """The Edit menu as a context menu, headed by what is selected."""

    name = "edits"

    def groups(self) -> Iterable[Iterable[str]]:
        if self._models.selection.now.position is not None:
            yield "run.here_token", "run.at_token", "run.go_on", "run.to"
        yield "value.copy", "picture.copy"
        undo, *groups, parts, notes = self._actions.menus["&Edit"]
        for group in (parts, *groups, notes, undo):
            yield [action.name for action in declared_in({"": [group]})]

    def words(self) -> tuple[str, ...]:
        """What is selected, and its size."""
        rows, model = chosen_rows(self._models), self._models.status.model
        if rows is None or model is None:
            return (f"Nothing is selected: {NOTHING}",)
        return rows_words(rows), size_words(rows, model.geometry, model.dtype)


class TimelineMenu(PlaceMenu):
    """The actions on a step, headed by which step is shown."""

    name = "step"

    def groups(self) -> Iterable[Iterable[str]]:
        return TIMELINE_GROUPS

    def words(self) -> tuple[str]:
        """Which step is shown, or how far ahead the chosen place is."""
        now, timeline = self._models.selection.now, self._models.timeline
        if now.ahead:
            return (f"{counted(now.ahead, 'step')} ahead of the live step",)
        if now.step is not None:
            ahead = timeline.num_steps_ahead
            where = f", {counted(ahead, 'step')} ahead of the live one" if ahead else ""
            where = ", on another branch" if timeline.is_elsewhere and not ahead else where
            return (f"Step {thousands(now.step)}{where}",)
        return ("The live step" if timeline.latest is not None else "No step was taken",)


class NoteMenu(PlaceMenu):
    """The actions on a bookmark. `panels` maps a kind of place to the panels that set it while they have the focus.
    Signal: `deleted(target)`."""

    name = "notes"
    deleted = Signal(object)

    def __init__(
        self, models: Models, actions: Actions, panels: Mapping[str, tuple[QWidget, ...]], parent: QWidget
    ) -> None:
        super().__init__(models, actions, parent)
        self._panels = panels
        self._target: BookmarkTarget | None = None

    @property
    def kind(self) -> str:
        """The kind of place to bookmark: that of the focused panel, else of the smallest thing selected."""
        found, focused = places(self._models), QApplication.focusWidget()
        for kind, panels in self._panels.items():
            if kind in found and any((focused is not None and p.isAncestorOf(focused)) or p is focused for p in panels):
                return kind
        return next((kind for kind in (PAGE, TOKEN) if kind in found), STEP)

    def words(self) -> tuple[str, ...]:
        self._target = places(self._models).get(self.kind)
        if self._target is None:
            return ()
        return (f"{place_words(self._models, self._target)} · step {self._target.step}",)

    def groups(self) -> Iterable[Iterable[str]]:
        yield ("note.add",)

    def add_more(self, menu: QMenu) -> None:
        if self._target is not None and self._models.bookmarks.at(self._target) is not None:
            menu.addAction("Delete bookmark", self._on_delete)

    def _on_delete(self) -> None:
        self.deleted.emit(self._target)
