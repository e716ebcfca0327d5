"""The dialogs that actions open. Each is imported when it is opened, so that the window itself opens faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QFileDialog

from app.kit.asking import Question
from app.models.saved_view import view_text
from engine.client import is_elsewhere
from engine.files.text import kind_of, model_among, names_beside
from engine.spec.bookmark import BookmarkTarget
from engine.spec.model import BUNDLED, SHAPE_PREFIX, ModelSpec
from engine.wire.commands import ListFolder
from engine.wire.events import Event, Failed, FolderListed

if TYPE_CHECKING:
    from app.kit.dialog import Sheet
    from app.shell import Shell


STATE = ".bin"  # how state files of llama.cpp are called
OPENED = (".safetensors", ".npz", ".json", ".jsonl", STATE)


def open_folder(shell: Shell) -> None:
    def load(path: str) -> None:
        shell.intents.on_model_chosen(ModelSpec(path))

    _ask_path(shell)("Open model folder", (), load)


def open_shape(shell: Shell) -> None:
    def load(path: str) -> None:
        shell.intents.on_model_chosen(ModelSpec(f"{SHAPE_PREFIX}{path}"))

    _ask_path(shell)("Shape from config.json", (".json",), load)


def _ask_path(shell: Shell) -> Callable[..., None]:
    """`ask_path` for files of the engine's machine."""
    from app.kit.dialog import ask_path

    return partial(ask_path, shell.window, shell.models.status.engine, shell.intents.take)


def ask_engine_address(shell: Shell) -> None:
    from app.dialogs.questions import AddressDialog

    AddressDialog(shell.settings.engine, shell.window).ask(shell.engine_wanted.emit)


def save_session(shell: Shell) -> None:
    status = shell.models.status.now
    step = "" if status.step is None else f"-step{status.step}"
    suggested = str(shell.models.status.folder / f"kvloupe{step}.session.json")
    path, _ = QFileDialog.getSaveFileName(shell.window, "Save session", suggested, "Sessions (*.json)")
    if path:
        shell.save_session(Path(path))


def open_file(shell: Shell) -> None:
    def take(path: str) -> None:
        open_path(shell, Path(path))

    def take_here(path: str) -> None:
        shell.intents.on_snapshot_chosen(Path(path), is_here=True)

    is_far = is_elsewhere(shell.models.status.engine)
    start = "" if is_far else str(shell.models.status.folder)
    _ask_path(shell)("Open snapshot or session", OPENED, take, start, take_here)


def open_path(shell: Shell, path: Path) -> None:
    """Open a file of the engine's machine. A state file of llama.cpp does not name its model, which is asked for unless
    one lies beside it."""

    def show(model: str = "") -> None:
        shell.intents.on_snapshot_chosen(path, Path(model) if model else None)

    def show_with(names: Sequence[str]) -> None:
        if model_among(names):
            show()
        else:
            _ask_path(shell)(f"The model of {path.name}", (".gguf", "config.json"), show, str(path.parent))

    def take(event: Event) -> None:
        assert isinstance(event, FolderListed)
        show_with(event.files)

    def refused(_: Failed) -> None:
        show()  # and hear why not

    if not is_elsewhere(shell.models.status.engine):
        show_with(names_beside(path)) if kind_of(path) == "state" else show()
    elif path.suffix == STATE:
        shell.intents.take(Question(ListFolder(str(path.parent)), take, refused))
    else:
        show()


def ask_bookmark(shell: Shell) -> None:
    from app.dialogs.questions import BookmarkDialog

    window = shell.window
    BookmarkDialog(shell.models, window.note_menu.kind, window).ask(shell.intents.on_bookmark_put)


def ask_note(shell: Shell, target: BookmarkTarget) -> None:
    from app.dialogs.questions import BookmarkDialog

    BookmarkDialog(shell.models, "", shell.window, target).ask(shell.intents.on_bookmark_put)


def ask_hub_name(shell: Shell) -> None:
    from app.dialogs.loading import HubDialog

    HubDialog(shell.window).ask(shell.intents.on_model_chosen)


def ask_server(shell: Shell) -> None:
    from app.dialogs.questions import ServerDialog

    ServerDialog(shell.server_tried, shell.window).ask(shell.attach)


def ask_loading(shell: Shell) -> None:
    from app.dialogs.loading import LoadingDialog

    status = shell.models.status
    present = ModelSpec(status.last_source or BUNDLED).loaded_as(shell.intents.loading)
    dialog = LoadingDialog(present, status.now.cache, shell.window, shell.models.status.engine)
    dialog.wants.connect(shell.intents.take)
    dialog.ask(shell.intents.on_loading_chosen)


def ask_export(shell: Shell, kind: str = "snapshot") -> None:
    from app.dialogs.export import ExportDialog

    window, exports = shell.window, shell.controller.requests.exports
    view = view_text(shell.models, window.docks.arrangement)
    pictures = {panel.accessibleName(): panel.frame for panel in window.panels.values() if panel.isVisible()}
    dialog = ExportDialog(shell.models, pictures, view, exports.is_writing, window)
    dialog.wants.connect(shell.intents.take)
    dialog.set_kind(kind)
    dialog.ask(shell.intents.send)


def ask_run_to(shell: Shell) -> None:
    from app.dialogs.questions import RunToDialog

    RunToDialog(shell.models, shell.window).ask(shell.intents.on_run_to)


def ask_kept_limit(shell: Shell) -> None:
    from app.dialogs.questions import CheckpointLimitDialog

    CheckpointLimitDialog(shell.models.status.now, shell.window).ask(shell.set_kept_limit)


def ask_parameters(shell: Shell, label: str = "") -> None:
    """Ask for the parameters of the cache in use; the cursor is in the field of that label."""
    from app.dialogs.cache import CacheDialog

    dialog = CacheDialog(shell.models.status.now.cache, shell.models.status.now.model, shell.window)
    dialog.begin_at(label)
    dialog.ask(shell.window.top.cache.choose)


def open_calculator(shell: Shell) -> None:
    from app.dialogs.calculator import Calculator

    _show(Calculator(shell.models.status.now.model, shell.models.status.now.cache, shell.window), shell)


def open_max_parameters(shell: Shell) -> None:
    from app.dialogs.max_params import MaxParams

    if (model := shell.models.status.now.model) is not None:
        _show(MaxParams(model, shell.window), shell)


def _show(sheet: Sheet, shell: Shell) -> None:
    """Open a dialog that does not block the window."""
    sheet.message.connect(shell.models.status.notify)
    sheet.show()


def open_outliers(shell: Shell) -> None:
    """Open the list of outliers, which does not block the window, or raise the one that is open."""
    from app.dialogs.outliers import OutliersDialog

    for dialog in shell.window.findChildren(OutliersDialog):  # at most one is opened
        dialog.raise_()
        dialog.activateWindow()
        return
    dialog = OutliersDialog(shell.models, shell.window)
    dialog.open_below(shell.window.docks.docks["head"])


def open_manual(shell: Shell, page: str) -> None:
    """Open a page of the manual, which does not block the window; `page#section` scrolls to that section."""
    from app.dialogs.help import Manual

    there = (dialog for dialog in shell.window.findChildren(Manual) if dialog.isVisible())  # at most one is open
    (next(there, None) or Manual(shell.window)).open_page(page)


def open_help_on_panel(shell: Shell) -> None:
    """Open the page of the panel that has the focus."""
    open_manual(shell, shell.window.focused_panel)


def open_warnings(shell: Shell) -> None:
    """Show all warnings in words."""
    from app.dialogs.help import WarningsDialog

    WarningsDialog(shell.window.status.warnings, shell.window).open()


def open_keys(shell: Shell) -> None:
    from app.dialogs.help import KeysDialog

    KeysDialog(shell.actions, shell.window).open()


def open_about(shell: Shell) -> None:
    from app.dialogs.help import AboutDialog

    AboutDialog(shell.window).open()
