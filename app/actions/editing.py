"""Edits of the selection: made at once if they need no parameters, else in a dialog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.models.chosen_rows import NOTHING, EditOfRows, edit_of_chosen

if TYPE_CHECKING:
    from app.dialogs.edit_form import EditForm
    from app.shell import Shell


def make(edit: EditOfRows, shell: Shell, *, is_whole: bool = False) -> None:
    """Make an edit of the selected rows; `is_whole`: of K and V together, unless channels are selected. Without a
    selection the status line says so."""
    made = edit_of_chosen(shell.models, edit, is_whole=is_whole)
    if made is None:
        shell.models.status.notify(f"Nothing is selected: {NOTHING}")
    else:
        shell.intents.on_edited(made)


def ask_scale(shell: Shell) -> None:
    from app.dialogs.edits import ScaleForm

    _ask(shell, ScaleForm(shell.models, shell.window))


def ask_noise(shell: Shell) -> None:
    from app.dialogs.edits import NoiseForm

    _ask(shell, NoiseForm(shell.models, shell.window))


def ask_overwrite(shell: Shell) -> None:
    from app.dialogs.edits import OverwriteForm

    _ask(shell, OverwriteForm(shell.models, shell.window, shell.export_folder))


def ask_replace(shell: Shell) -> None:
    from app.dialogs.token_edits import ReplaceForm

    _ask_tokens(shell, ReplaceForm(shell.models, shell.window))


def ask_bias(shell: Shell, token_ids: tuple[int, ...] = ()) -> None:
    """Open the dialog to bias logits, beginning with these tokens, if any."""
    from app.dialogs.token_edits import BiasForm

    form = BiasForm(shell.models, shell.window)
    if token_ids:
        form.offer(token_ids)
    _ask_tokens(shell, form)


def ask_typed(shell: Shell) -> None:
    from app.dialogs.edits import TypedForm

    _ask(shell, TypedForm(shell.models, shell.window))


def _ask_tokens(shell: Shell, form: EditForm) -> None:
    form.tokens.wants.connect(shell.intents.take)  # type: ignore[attr-defined]
    _ask(shell, form)


def _ask(shell: Shell, form: EditForm) -> None:
    form.ask(shell.intents.on_edited)
