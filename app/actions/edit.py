"""The Edit menu: edits of the selected rows, undo and redo."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from app.actions import dialogs
from app.control.actions import Action
from app.control.conditions import (
    needs_edited,
    needs_evictable_rows,
    needs_live_steps,
    needs_rows,
    needs_steps,
    needs_undone,
    needs_whole_rows,
)
from app.models import Models
from app.models.chosen_rows import NOTHING, EditOfRows, choose_part, edit_of_chosen
from engine.spec.edit import Drop, Mask, Pin, Zero
from engine.wire.commands import RedoEdit, UndoEdit

if TYPE_CHECKING:
    from app.dialogs.edits import EditForm
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
    from app.dialogs.edits import ReplaceForm

    _ask_tokens(shell, ReplaceForm(shell.models, shell.window))


def ask_bias(shell: Shell, token_ids: tuple[int, ...] = ()) -> None:
    """Open the dialog to bias logits, beginning with these tokens, if any."""
    from app.dialogs.edits import BiasForm

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


WholeRowsNeed = Callable[[EditOfRows, Models], str]

UNMASK, UNPIN = partial(Mask, hidden=False), partial(Pin, pinned=False)


def _whole(
    edit: EditOfRows, name: str, key: str, text: str, tip: str, needs: WholeRowsNeed = needs_whole_rows
) -> Action:
    """Make an action for an edit of whole rows; it is possible only if the edit would not be refused."""
    do = partial(make, edit, is_whole=True)
    return Action(name, key, text, tip, do, partial(needs, edit), where="rows" if key else "window")


_edit = partial(Action, needs=needs_rows)
_part = partial(Action, needs=needs_rows, is_check=True)

# fmt: off
EDIT = (
    (
        Action("edit.undo", "Ctrl+Z", "Undo edit", "Return to the step before the newest edit",
               UndoEdit(), needs_edited),
        Action("edit.redo", "Ctrl+Shift+Z", "Redo edit", "Return to the step that the last undo left",
               RedoEdit(), needs_undone),
    ),
    (
        Action("edit.zero", "Z", "Zero", "In a picture: write zeros into the selected rows",
               partial(make, Zero), needs_rows, where="rows", also="ablate, ablation, erase, clear rows"),
        _edit("edit.scale", "", "Scale…", "Multiply the selected rows by a factor", ask_scale),
        _edit("edit.noise", "", "Add noise…", "Add normal noise to the selected rows", ask_noise),
        _edit("edit.overwrite", "", "Overwrite from…",
              "Write what another step, branch, sequence or snapshot has there: activation patching",
              ask_overwrite),
    ),
    (
        _whole(Mask, "edit.mask", "M", "Mask",
               "In a picture: hide the selected rows from attention; the cache keeps them"),
        _whole(UNMASK, "edit.unmask", "", "Unmask", "Show the selected rows to attention again"),
        _whole(Pin, "edit.pin", "", "Pin", "Keep the eviction rule from evicting the selected rows",
               needs_evictable_rows),
        _whole(UNPIN, "edit.unpin", "", "Unpin", "Let the eviction rule evict the selected rows",
               needs_evictable_rows),
        _whole(Drop, "edit.drop", "Del", "Drop",
               "In a picture: drop the selected rows, as an eviction rule does"),
    ),
    (
        _edit("edit.replace", "", "Replace tokens…",
              "Put other tokens there: overwrite their K and V alone, or compute what follows anew",
              ask_replace, also="swap tokens, counterfactual"),
        Action("edit.bias", "", "Bias logits…", "Favour, ban or force tokens before one is chosen", ask_bias,
               needs_live_steps, also="logit bias, ban token, force token"),
        Action("edit.typed", "Ctrl+T", "Type an edit…", "An edit in words: zero pos=4:8 layer=3 head=1",
               ask_typed, needs_live_steps),
    ),
    (
        _part("edit.both", "", "Of the selection: K and V", "Edits are of K and of V",
              lambda shell: choose_part(shell.models, "both")),
        _part("edit.keys", "", "Of the selection: K alone", "Edits are of K",
              lambda shell: choose_part(shell.models, "keys")),
        _part("edit.values", "", "Of the selection: V alone", "Edits are of V",
              lambda shell: choose_part(shell.models, "values")),
    ),
    (
        Action("note.add", "Ctrl+D", "Bookmark…", "Mark the step, token, page or head that you view, with a note",
               dialogs.ask_bookmark, needs_steps, also="note, comment, annotate"),
    ),
)
