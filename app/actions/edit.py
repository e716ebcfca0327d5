"""The Edit menu: edits of the selected rows, undo and redo."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from app.actions import dialogs, editing
from app.control.actions import Action
from app.control.conditions import (
    needs_dropped_rows,
    needs_edited,
    needs_live_steps,
    needs_rows,
    needs_steps,
    needs_undone,
    needs_whole_rows,
)
from app.models import Models
from app.models.chosen_rows import EditOfRows, choose_part
from engine.spec.edit import Drop, Mask, Pin, Zero
from engine.wire.commands import RedoEdit, UndoEdit

WholeRowsNeed = Callable[[EditOfRows, Models], str]

UNMASK, UNPIN = partial(Mask, hidden=False), partial(Pin, pinned=False)


def _whole(
    edit: EditOfRows, name: str, key: str, text: str, tip: str, needs: WholeRowsNeed = needs_whole_rows
) -> Action:
    """Make an action for an edit of whole rows; it is possible only if the edit would not be refused."""
    do = partial(editing.make, edit, is_whole=True)
    return Action(name, key, text, tip, do, partial(needs, edit), where="rows" if key else "window")


_edit = partial(Action, needs=needs_rows)
_part = partial(Action, needs=needs_rows, is_check=True)

# fmt: off
EDIT = (
    (
        Action("edit.undo", "Ctrl+Z", "Undo edit", "Return to the step before the newest edit",
               lambda shell: shell.intents.send(UndoEdit()), needs_edited),
        Action("edit.redo", "Ctrl+Shift+Z", "Redo edit", "Return to the step that the last undo left",
               lambda shell: shell.intents.send(RedoEdit()), needs_undone),
    ),
    (
        Action("edit.zero", "Z", "Zero", "In a picture: write zeros into the selected rows",
               partial(editing.make, Zero), needs_rows, where="rows", also="ablate, ablation, erase, clear rows"),
        _edit("edit.scale", "", "Scale…", "Multiply the selected rows by a factor", editing.ask_scale),
        _edit("edit.noise", "", "Add noise…", "Add normal noise to the selected rows", editing.ask_noise),
        _edit("edit.overwrite", "", "Overwrite from…",
              "Write what another step, branch, sequence or snapshot has there: activation patching",
              editing.ask_overwrite),
    ),
    (
        _whole(Mask, "edit.mask", "M", "Mask",
               "In a picture: hide the selected rows from attention; the cache keeps them"),
        _whole(UNMASK, "edit.unmask", "", "Unmask", "Show the selected rows to attention again"),
        _whole(Pin, "edit.pin", "", "Pin", "Keep the rule of retention from dropping the selected rows",
               needs_dropped_rows),
        _whole(UNPIN, "edit.unpin", "", "Unpin", "Let the rule of retention drop the selected rows",
               needs_dropped_rows),
        _whole(Drop, "edit.drop", "Del", "Drop",
               "In a picture: drop the selected rows, as a rule of retention does"),
    ),
    (
        _edit("edit.replace", "", "Replace tokens…",
              "Put other tokens there: overwrite their K and V alone, or compute what follows anew",
              editing.ask_replace, also="swap tokens, counterfactual"),
        Action("edit.bias", "", "Bias logits…", "Favour, ban or force tokens before one is chosen", editing.ask_bias,
               needs_live_steps, also="logit bias, ban token, force token"),
        Action("edit.typed", "Ctrl+T", "Type an edit…", "An edit in words: zero pos=4:8 layer=3 head=1",
               editing.ask_typed, needs_live_steps),
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
        Action("note.add", "Ctrl+D", "Bookmark…", "Mark the step, token, page or head that you look at, with a note",
               dialogs.ask_bookmark, needs_steps, also="note, comment, annotate"),
    ),
)
