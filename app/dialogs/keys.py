"""Which key does what."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QHeaderView, QTreeWidget, QTreeWidgetItem, QVBoxLayout, QWidget

from app.control.actions import Action, Actions, native
from app.kit.dialog import Dialog
from app.kit.theme import font_fixed, font_text


class KeysDialog(Dialog):
    """Which key does what, from the table of actions."""

    def __init__(self, actions: Actions, parent: QWidget) -> None:
        super().__init__("Keys", parent)
        tree = QTreeWidget()
        tree.setColumnCount(3)
        tree.setHeaderLabels(["Action", "Key", "Where"])
        tree.setRootIsDecorated(False)
        tree.setAccessibleName("Keys")
        for title, groups in actions.menus.items():
            _add_menu(tree, title, [action for group in groups for action in group if action.key], actions)
        tree.expandAll()
        tree.header().setSectionResizeMode(0, QHeaderView.ResizeMode.ResizeToContents)
        tree.header().setSectionResizeMode(1, QHeaderView.ResizeMode.ResizeToContents)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(14, 14, 14, 14)
        layout.addWidget(tree)
        self.resize(560, 620)


def _add_menu(tree: QTreeWidget, title: str, declared: Sequence[Action], actions: Actions) -> None:
    if not declared:
        return
    heading = QTreeWidgetItem([title.replace("&", "")])
    heading.setFlags(Qt.ItemFlag.ItemIsEnabled)
    heading.setFont(0, font_text(weight=QFont.Weight.DemiBold))
    tree.addTopLevelItem(heading)
    where = {
        "window": "anywhere",
        "picture": "in a picture",
        "rows": "in a picture, on tokens",
        "timeline": "on the timeline",
    }
    for action in declared:
        item = QTreeWidgetItem([actions[action.name].text(), native(action.key), where[action.where]])
        item.setFont(1, font_fixed())
        item.setToolTip(0, action.tip)
        heading.addChild(item)
