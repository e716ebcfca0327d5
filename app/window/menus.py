"""The menu bar, from the table of actions."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QMenu, QMenuBar, QPushButton

from app.control.actions import Actions, native


def fill_menu_bar(bar: QMenuBar, actions: Actions, recent: Sequence[QMenu]) -> QMenu:
    """A menu for each title, a line between groups, and the button that finds any action. `recent` ones stand with
    the files; answers the empty menu of panels, which stands after the layouts."""
    bar.setNativeMenuBar(False)
    panels = QMenu("Panels", bar)
    for title, groups in actions.menus.items():
        menu = bar.addMenu(title)
        menu.setToolTipsVisible(True)
        for group in groups:
            menu.addSeparator()  # Qt shows none at the top
            menu.addActions([actions[action.name] for action in group if action.where != "timeline"])
            if group[0].name.startswith("snapshot."):
                for each in recent:
                    menu.addMenu(each)
            if group[0].name.startswith("layout."):
                menu.addMenu(panels)
    find = QPushButton(f"Find any action   {native('Ctrl+Shift+P')}", bar)
    find.setObjectName("find")
    find.setFlat(True)
    find.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    find.clicked.connect(actions["help.palette"].trigger)
    bar.setCornerWidget(find)
    find.show()
    return panels
