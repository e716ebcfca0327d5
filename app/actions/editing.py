"""Edits of the selection: made at once if they need no parameters, else in a dialog."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from app.models.chosen_rows import NOTHING, chosen_rows
from engine.spec.edit import Drop, Edit, Mask, Pin, Rows, Zero

if TYPE_CHECKING:
    from app.dialogs.edit_form import EditForm
    from app.shell import Shell


def zero(shell: Shell) -> None:
    _make(shell, Zero)


def mask(shell: Shell) -> None:
    _make(shell, Mask, is_whole=True)


def unmask(shell: Shell) -> None:
    _make(shell, lambda seq_id, rows: Mask(seq_id, rows, hidden=False), is_whole=True)


def pin(shell: Shell) -> None:
    _make(shell, Pin, is_whole=True)


def unpin(shell: Shell) -> None:
    _make(shell, lambda seq_id, rows: Pin(seq_id, rows, pinned=False), is_whole=True)


def drop(shell: Shell) -> None:
    _make(shell, Drop, is_whole=True)


def _make(shell: Shell, edit: Callable[[int, Rows], Edit], *, is_whole: bool = False) -> None:
    """Make an edit of the selected rows; `is_whole`: of K and V together, unless channels are selected. Without a
    selection the status line says so."""
    models, rows = shell.models, chosen_rows(shell.models)
    if rows is None:
        models.status.notify(f"Nothing is selected: {NOTHING}")
        return
    if is_whole and rows.channels is None:
        rows = replace(rows, part="both")
    shell.intents.on_edited(edit(models.selection.now.seq_id, rows))


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
    texts = shell.controller.requests.edited_texts
    form.tokens.text_edited.connect(shell.intents.on_edited_text)  # type: ignore[attr-defined]
    texts.counted.connect(form.tokens.set_tokens)  # type: ignore[attr-defined]
    texts.refused.connect(form.tokens.refuse)  # type: ignore[attr-defined]
    _ask(shell, form)


def _ask(shell: Shell, form: EditForm) -> None:
    form.ask(shell.intents.on_edited)
