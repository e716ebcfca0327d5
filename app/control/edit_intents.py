"""What a person may wish to change by hand."""

from __future__ import annotations

from app.control.asking import Asking
from engine.errors import InputError
from engine.spec.edit import Edit
from engine.wire import commands


class EditIntents(Asking):
    """Edits of the live step, and their undoing."""

    def on_edited(self, edit: Edit) -> None:
        """Change something by hand, of the live step."""
        if self._models.selection.now.step is not None:
            self._models.status.notify("Edits are made on the live step: go to this one first, then edit")
            return
        try:
            self._check(edit)
        except InputError as error:
            self._models.status.fail(str(error))
        else:
            self._send(commands.MakeEdit(edit))

    def on_edits_repeated(self, edits: tuple[Edit, ...]) -> None:
        """Edits that were made before, or are in a file: all that are possible on the live step, in their order, or
        none."""
        try:
            for edit in edits:
                self._check(edit)
        except InputError as error:
            self._models.status.fail(str(error))
            return
        for edit in edits:
            self.on_edited(edit)

    def _check(self, edit: Edit) -> None:
        """Raises `InputError` where an edit cannot be made on the live step."""
        if (model := self._models.status.model) is not None:
            edit.check(model.geometry, self._models.timeline.num_tokens(edit.seq_id))

    def on_edited_text(self, text: str) -> None:
        """Count the tokens of a text that is typed for an edit."""
        if not self._models.status.is_engine_lost:
            self._requests.edited_texts.ask(text)
            self._waiting.wake()

    def on_edit_undone(self) -> None:
        """Return to before the newest edit."""
        self._send(commands.UndoEdit())

    def on_edit_redone(self) -> None:
        """Return to what the last undo left."""
        self._send(commands.RedoEdit())
