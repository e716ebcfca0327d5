"""The Edit menu: edits of the selected rows, undo and redo."""

from __future__ import annotations

from functools import partial

from app.actions import dialogs, editing
from app.control.actions import Action
from app.control.conditions import needs_dropping, needs_edited, needs_live_steps, needs_rows, needs_steps, needs_undone
from app.models.chosen_rows import choose_part

_on_rows = partial(Action, where="rows", needs=needs_rows)
_edit = partial(Action, needs=needs_rows)
_part = partial(Action, needs=needs_rows, is_check=True)

# fmt: off
EDIT = (
    (
        Action("edit.undo", "Ctrl+Z", "Undo edit", "Return to the moment before the newest edit",
               lambda shell: shell.intents.on_edit_undone(), needs_edited),
        Action("edit.redo", "Ctrl+Shift+Z", "Redo edit", "Return to the moment that the last undo left",
               lambda shell: shell.intents.on_edit_redone(), needs_undone),
    ),
    (
        _on_rows("edit.zero", "Z", "Zero", "In a picture: write zeros into the selected rows", editing.zero),
        _edit("edit.scale", "", "Scale…", "Multiply the selected rows by a factor", editing.ask_scale),
        _edit("edit.noise", "", "Add noise…", "Add normal noise to the selected rows", editing.ask_noise),
        _edit("edit.overwrite", "", "Overwrite from…",
              "Write what another step, branch, sequence or snapshot has there: activation patching",
              editing.ask_overwrite),
    ),
    (
        _on_rows("edit.mask", "M", "Mask", "In a picture: hide the selected rows from attention; the cache keeps them",
                 editing.mask),
        _edit("edit.unmask", "", "Unmask", "Show the selected rows to attention again", editing.unmask),
        Action("edit.pin", "", "Pin", "Keep the rule of retention from dropping the selected rows", editing.pin,
               needs_dropping),
        Action("edit.unpin", "", "Unpin", "Let the rule of retention drop the selected rows", editing.unpin,
               needs_dropping),
        _on_rows("edit.drop", "Del", "Drop", "In a picture: drop the selected rows, as a rule of retention does",
                 editing.drop),
    ),
    (
        _edit("edit.replace", "", "Replace tokens…",
              "Put other tokens there: overwrite their K and V alone, or compute what follows anew",
              editing.ask_replace),
        Action("edit.bias", "", "Bias logits…", "Favour, ban or force tokens before one is chosen", editing.ask_bias,
               needs_live_steps),
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
               dialogs.ask_bookmark, needs_steps),
    ),
)
