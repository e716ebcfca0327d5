"""The menu bar, built from the table of actions, the menus of recent files, and context menus headed by a place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from PySide6.QtCore import QDateTime, QLocale, QObject, QPoint, Qt, Signal
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QApplication, QMenu, QMenuBar, QPushButton, QWidget

from app.control.actions import Action, Actions, Group, Submenu, declared_in, native
from app.draw.edited import rows_words, size_words
from app.draw.format import thousands
from app.kit.widgets import plain_tip, prose
from app.kit.words import PAGE, STEP, TOKEN, place_words, places
from app.models import KeptSession, Models
from app.models.places import NOTHING, chosen_rows
from engine.client.ssh import PREFIX
from engine.counted import counted
from engine.spec.bookmark import BookmarkTarget

MOST_LISTED = 12  # of the recent sessions; Find any action has all


def fill_menu_bar(bar: QMenuBar, actions: Actions, recent: Sequence[QMenu]) -> QMenu:
    """Add a menu for each title, with separators between groups, and the button that finds any action. The `recent`
    menus are added to the files' group. Returns the empty menu of panels, which is added after the layouts."""
    bar.setNativeMenuBar(False)
    panels = QMenu("Panels", bar)
    for title, groups in actions.menus.items():
        _fill(bar.addMenu(title), groups, actions, {"snapshot.open": recent, "Layout": [panels]})
    find = QPushButton(f"Find any action   {native('Ctrl+Shift+P')}", bar)
    find.setObjectName("find")
    find.setFlat(True)
    find.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    find.clicked.connect(actions["help.palette"].trigger)
    bar.setCornerWidget(find)
    return panels


def _fill(menu: QMenu, groups: Sequence[Group], actions: Actions, after: Mapping[str, Sequence[QMenu]]) -> None:
    """Add the groups of a menu, and the menus to be put `after` the group that begins with an action of that name."""
    menu.setToolTipsVisible(True)
    for group in groups:
        menu.addSeparator()  # Qt hides a separator at the top
        for entry in group:
            if isinstance(entry, Submenu):
                _fill(menu.addMenu(entry.title), entry.groups, actions, {})
            elif entry.where != "timeline":
                menu.addAction(actions[entry.name])
        for each in after.get(_name(group[0]), ()):
            menu.addMenu(each)
    menu.aboutToShow.connect(actions.tell_more)


def _name(entry: Action | Submenu) -> str:
    return entry.title if isinstance(entry, Submenu) else entry.name


def time_words(seconds: float) -> str:
    """A time since 1970 as the day and the minute: `23 Nov, 21:30`, in English whatever the computer's language is."""
    return QLocale.c().toString(QDateTime.fromSecsSinceEpoch(int(seconds)), "dd MMM, HH:mm")


def recent_name(path: Path, machine: str) -> str:
    """How a recent file is remembered: by its path, with the other machine that it lies on before it, if it does."""
    return f"{PREFIX}{machine}/{path.as_posix()}" if machine else str(path)


def path_and_machine(name: str) -> tuple[Path, str]:
    """What `recent_name` was given; the machine is empty for a file of this one."""
    machine, _, path = name.removeprefix(PREFIX).partition("/") if name.startswith(PREFIX) else ("", "", name)
    return Path(path), machine


class RecentFiles(QMenu):
    """A menu of files. Signal: `chosen(Path, machine)`, the other machine that the file lies on; empty for this one."""

    chosen = Signal(object, str)

    def __init__(self, title: str, parent: QWidget | None = None) -> None:
        super().__init__(title, parent)
        self.setToolTipsVisible(True)
        self.triggered.connect(self._on_triggered)
        self.set_names(())

    def set_names(self, names: Sequence[str]) -> None:
        """List these recent files, newest first, with the machine of those that lie on another one."""
        places = ((name, *path_and_machine(name)) for name in names)
        self._list((name, path.name, f"on {machine}" if machine else "") for name, path, machine in places)

    def set_sessions(self, sessions: Sequence[KeptSession]) -> None:
        """List these sessions by title, with the time of their end."""
        self._list((str(each.path), each.title, time_words(each.written)) for each in sessions[:MOST_LISTED])

    def _list(self, files: Iterable[tuple[str, str, str]]) -> None:
        self.clear()
        for name, title, words in files:
            action = self.addAction(prose(title).replace("&", "&&") + ("\t" + prose(words) if words else ""))
            action.setData(name)
            action.setToolTip(plain_tip(prose(name)))
        self.setEnabled(not self.isEmpty())

    def _on_triggered(self, action: QAction) -> None:
        self.chosen.emit(*path_and_machine(action.data()))


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
        rows, model = chosen_rows(self._models), self._models.status.now.model
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
