"""The menu bar, built from the table of actions, and the menus of recent files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu, QMenuBar, QPushButton, QWidget

from app.control.actions import Action, Actions, Group, Submenu, native
from app.kit.labels import plain_tip, prose
from app.models import KeptSession

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


def _name(entry: Action | Submenu) -> str:
    return entry.title if isinstance(entry, Submenu) else entry.name


def time_words(seconds: float) -> str:
    """A time since 1970 as the day and the minute: `23 Nov, 21:30`."""
    return f"{datetime.fromtimestamp(seconds):%d %b, %H:%M}"


class RecentFiles(QMenu):
    """A menu of files. Signal: `chosen(Path)`."""

    chosen = Signal(object)

    def __init__(self, title: str, parent: QWidget | None = None) -> None:
        super().__init__(title, parent)
        self.setToolTipsVisible(True)
        self.triggered.connect(self._on_triggered)
        self.set_paths(())

    def set_paths(self, paths: Sequence[str]) -> None:
        """List these files by name, newest first."""
        self._list((path, Path(path).name, "") for path in paths)

    def set_sessions(self, sessions: Sequence[KeptSession]) -> None:
        """List these sessions by title, with the time of their end."""
        self._list((str(each.path), each.title, time_words(each.written)) for each in sessions[:MOST_LISTED])

    def _list(self, files: Iterable[tuple[str, str, str]]) -> None:
        self.clear()
        for path, name, when in files:
            action = self.addAction(prose(name).replace("&", "&&") + ("\t" + when if when else ""))
            action.setData(path)
            action.setToolTip(plain_tip(prose(path)))
        self.setEnabled(not self.isEmpty())

    def _on_triggered(self, action: QAction) -> None:
        self.chosen.emit(Path(action.data()))
