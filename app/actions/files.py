"""The File menu: models in, snapshots, tables and pictures out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtWidgets import QFileDialog

from app.control.actions import Action
from app.control.conditions import needs_steps
from engine.spec.model import SHAPE_PREFIX, ModelSpec

if TYPE_CHECKING:
    from app.shell import Shell

# Dialogs are imported when they are asked for: none of them is part of the first picture.


def _open_folder(shell: Shell) -> None:
    path = QFileDialog.getExistingDirectory(shell.window, "Open model folder")
    if path:
        shell.intents.on_model_chosen(ModelSpec(path))


def _open_shape(shell: Shell) -> None:
    path, _ = QFileDialog.getOpenFileName(shell.window, "Shape from config.json", "", "Model config (*.json)")
    if path:
        shell.intents.on_model_chosen(ModelSpec(f"{SHAPE_PREFIX}{path}"))


def _ask_hub_name(shell: Shell) -> None:
    from app.dialogs.hub import HubDialog

    dialog = HubDialog(shell.window)
    dialog.chosen.connect(shell.intents.on_model_chosen)
    dialog.open()


def _ask_export(shell: Shell) -> None:
    from app.dialogs.export import ExportDialog

    dialog = ExportDialog(shell.models, shell.export_folder, shell.window)
    dialog.snapshot_chosen.connect(shell.intents.on_export_chosen)
    dialog.accepted_in.connect(shell.remember_export_folder)
    dialog.open()


FILES = (
    (
        Action(
            "model.open",
            "Open model folder…",
            _open_folder,
            key="Ctrl+O",
            tip="A folder in Hugging Face layout; dropping it on the window does the same",
        ),
        Action(
            "model.hub",
            "Model by hub name…",
            _ask_hub_name,
            tip="A model that is on this computer, or a download you allow",
        ),
        Action(
            "model.shape",
            "Shape from config.json…",
            _open_shape,
            tip="Build an architecture with random weights, to see its cache",
        ),
        Action(
            "model.bundled",
            "Bundled model",
            lambda shell: shell.intents.on_model_chosen(ModelSpec()),
            tip="Load the small model that comes with the program",
        ),
    ),
    (
        Action(
            "export",
            "Export…",
            _ask_export,
            key="Ctrl+E",
            tip="The cache as a snapshot, the steps as a table",
            needs=needs_steps,
        ),
        Action(
            "picture.copy",
            "Copy picture",
            lambda shell: shell.window.picture.copy_picture(),
            key="Ctrl+Shift+C",
            tip="The panel that has the focus, as a picture",
        ),
        Action(
            "picture.save",
            "Save picture…",
            lambda shell: shell.window.picture.save_picture(),
            key="Ctrl+Shift+E",
            tip="The panel that has the focus, as a PNG file",
        ),
    ),
    (Action("quit", "Quit", lambda shell: shell.window.close(), key="Ctrl+Q", tip="End the program"),),
)
