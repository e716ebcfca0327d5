"""An edit typed into the palette: `zero pos=4:8 layer=3` is parsed with every letter and made with Enter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.control.conditions import needs_live_steps
from engine.errors import InputError
from engine.spec.edit import Edit
from engine.spec.edit_text import FORMS, parse_edit

if TYPE_CHECKING:
    from app.shell import Shell


class TypedEdit:
    """Interprets the typed text as an edit, if it begins with an edit's name and contains a parameter."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def offer(self, text: str) -> tuple[str, str] | None:
        """(What the edit would do, ""); or (why it is not possible, "Edit"); None if the text is no edit."""
        verb, _, rest = text.strip().partition(" ")
        if verb not in FORMS or "=" not in rest:
            return None
        if why_not := needs_live_steps(self._shell.models):
            return why_not.capitalize(), "Edit"
        try:
            return f"Edit: {self._edit(text).describe()}", ""
        except InputError as error:
            return str(error), "Edit"

    def make(self, text: str) -> None:
        """Make the typed edit."""
        self._shell.intents.on_edited(self._edit(text))

    def _edit(self, text: str) -> Edit:
        models = self._shell.models
        seq_id = models.selection.now.seq_id
        num_tokens = models.timeline.num_tokens(seq_id)
        edit = parse_edit(text, seq_id, num_tokens)
        if models.status.model is not None:
            edit.check(models.status.model.geometry, num_tokens)
        return edit
