"""The sequences that a person asked for and the engine has not made yet: each is selected when it is there."""

from __future__ import annotations

from app.models import Models
from engine.wire.commands import Fork, SubmitPrompt
from engine.wire.events import Failed, Forked, Submitted


class NewSequences:
    """What was asked for, by the id of the command. Those of other branches come beside what is looked at."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._awaited: dict[int, Fork | SubmitPrompt] = {}
        self._joined_by = -1  # the newest command that brings sequences of other branches

    @property
    def is_empty(self) -> bool:
        return not self._awaited

    @property
    def replace_all(self) -> bool:
        """Whether a new prompt is about to take the place of the sequences that are there."""
        return any(isinstance(command, SubmitPrompt) and command.alone for command in self._awaited.values())

    def expect(self, number: int, command: Fork | SubmitPrompt) -> None:
        self._awaited[number] = command

    def expect_beside(self, number: int) -> None:
        """Those of other branches are asked for: what is looked at stays."""
        self._joined_by = number

    def show(self, seq_id: int, answer: Submitted | Forked) -> None:
        """It is there."""
        if answer.reply_to == self._joined_by:
            return
        self._awaited.pop(answer.reply_to or 0, None)
        self._models.selection.update(seq_id=seq_id, position=None, step=None)

    def refuse(self, failure: Failed) -> None:
        self._awaited.pop(failure.reply_to or 0, None)

    def forget(self) -> None:
        """No answer comes any more."""
        self._awaited.clear()
