"""Sequences and branches that were asked for and are not there yet: one is selected then, the other stepped."""

from __future__ import annotations

from app.control.sender import Sender
from app.models import Models
from engine.wire.commands import BeginBranch, Fork, Step, SubmitPrompt
from engine.wire.events import Failed, ForkMade, Submitted, WentTo


class NewSequences:
    """What was asked for, by the id of the command. Sequences of other branches come beside what is looked at."""

    def __init__(self, models: Models, sender: Sender) -> None:
        self._models, self._sender = models, sender
        self._awaited: dict[int, Fork | SubmitPrompt | BeginBranch] = {}
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

    def begin_branch(self, command: BeginBranch) -> None:
        """Ask for a branch and its first step. It goes to a step before it begins another branch; its own step is asked
        for only then: where the engine refused to go there, none is taken from where it stands."""
        self._awaited[self._sender.post(command)] = command

    def show(self, seq_id: int, answer: Submitted | ForkMade) -> None:
        """It is there."""
        if answer.reply_to == self._joined_by:
            return
        self._awaited.pop(answer.reply_to or 0, None)
        self._models.selection.update(seq_id=seq_id, position=None, step=None)

    def went_to(self, event: WentTo) -> None:
        """The engine went somewhere, for a branch or not."""
        if self._awaited.pop(event.reply_to or 0, None) is not None:
            self._sender.post(Step())

    def refuse(self, failure: Failed) -> None:
        self._awaited.pop(failure.reply_to or 0, None)

    def forget(self) -> None:
        """No answer comes any more."""
        self._awaited.clear()
