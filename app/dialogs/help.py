"""Dialogs that only tell: About, the list of keys, and the warnings."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from PySide6.QtCore import Qt, qVersion
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QDialogButtonBox, QHeaderView, QTreeWidget, QTreeWidgetItem, QVBoxLayout, QWidget

from app.control.actions import Action, Actions, declared_in, native
from app.kit.dialog import Dialog
from app.kit.labels import plain_label
from app.kit.theme import font_fixed, font_text


class AboutDialog(Dialog):
    """Show the version, the licence, and the versions of Python, Qt and the main packages."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__("About KV Loupe", parent)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(22, 20, 22, 16)
        layout.setSpacing(10)
        name = plain_label(f"KV Loupe {version('kvloupe')}".strip(), font_text(17, QFont.Weight.DemiBold))
        about = (
            "Look into the KV cache of a language model, step by step.",
            _versions(),
            "Apache License 2.0. Typefaces Inter and JetBrains Mono, SIL Open Font License 1.1.",
            "It sends nothing anywhere, and downloads nothing that you did not allow.",
        )
        facts = plain_label("\n\n".join(about), wraps=True)
        facts.setFixedWidth(420)
        facts.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        layout.addWidget(name)
        layout.addWidget(facts)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        buttons.rejected.connect(self.reject)
        layout.addWidget(buttons)


class WarningsDialog(Dialog):
    """Say each warning as a sentence."""

    def __init__(self, warnings: Sequence[str], parent: QWidget) -> None:
        super().__init__("Warnings", parent)
        self.setMinimumWidth(460)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(22, 18, 22, 14)
        layout.setSpacing(10)
        for words in warnings or ("There are no warnings.",):
            label = plain_label(words, wraps=True)
            label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            layout.addWidget(label)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        buttons.rejected.connect(self.reject)
        layout.addWidget(buttons)


def version(distribution: str) -> str:
    """Return the installed version of a package without importing it."""
    from importlib import metadata  # imports the mail parser, so only when it is needed

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _versions() -> str:
    parts = [f"Python {platform.python_version()}", f"Qt {qVersion()}"]
    parts += [f"{name} {version(name)}" for name in ("torch", "transformers", "safetensors", "numpy")]
    return " · ".join(parts)


class KeysDialog(Dialog):
    """List the actions and their keys."""

    def __init__(self, actions: Actions, parent: QWidget) -> None:
        super().__init__("Keys", parent)
        tree = QTreeWidget()
        tree.setColumnCount(3)
        tree.setHeaderLabels(["Action", "Key", "Where"])
        tree.setRootIsDecorated(False)
        tree.setAccessibleName("Keys")
        for title, groups in actions.menus.items():
            _add_menu(tree, title, [action for action in declared_in({title: groups}) if action.key], actions)
        tree.expandAll()
        tree.header().setSectionResizeMode(0, QHeaderView.ResizeMode.ResizeToContents)
        tree.header().setSectionResizeMode(1, QHeaderView.ResizeMode.ResizeToContents)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(14, 14, 14, 14)
        layout.addWidget(tree)
        self.resize(640, 620)


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
        name = actions.full_name(action.name).removeprefix(f"{heading.text(0)}: ")  # one in a submenu keeps its subject
        item = QTreeWidgetItem([name, native(action.key), where[action.where]])
        item.setFont(1, font_fixed())
        item.setToolTip(0, action.tip)
        heading.addChild(item)
