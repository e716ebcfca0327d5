"""Dialogs that only tell: About, the list of keys, and the warnings."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from PySide6.QtCore import Qt, qVersion
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QDialogButtonBox, QHeaderView, QLabel, QTreeWidget, QTreeWidgetItem, QWidget

from app.control.actions import Action, Actions, declared_in, native
from app.kit.dialog import Dialog
from app.kit.theme import font_fixed, font_text
from app.kit.widgets import column, plain_label


class AboutDialog(Dialog):
    """Show the version, the licence, and the versions of Python, Qt and the main packages."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__("About KV Loupe", parent)
        name = plain_label(f"KV Loupe {version('kvloupe')}".strip(), font_text(17, QFont.Weight.DemiBold))
        about = (
            "Look into the KV cache of a language model, step by step.",
            _versions(),
            "Apache License 2.0. Typefaces Inter and JetBrains Mono, SIL Open Font License 1.1.",
            "It sends nothing anywhere, and downloads nothing that you did not allow.",
        )
        facts = plain_label("\n\n".join(about), wraps=True, can_select=True)
        facts.setFixedWidth(420)
        _lay_out(self, name, facts)


class WarningsDialog(Dialog):
    """Say each warning as a sentence."""

    def __init__(self, warnings: Sequence[str], parent: QWidget) -> None:
        super().__init__("Warnings", parent)
        self.setMinimumWidth(460)
        told = warnings or ("There are no warnings.",)
        _lay_out(self, *(plain_label(words, wraps=True, can_select=True) for words in told))


def _lay_out(dialog: Dialog, *labels: QLabel) -> None:
    """Lay the labels out above a Close button."""
    buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
    buttons.rejected.connect(dialog.reject)
    column(*labels, buttons, spacing=10, margins=(22, 20, 22, 16), on=dialog)


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
        column(tree, margins=(14, 14, 14, 14), on=self)
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
