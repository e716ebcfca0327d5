"""Sequences and branches that were asked for and do not exist yet. When one does, it is selected or stepped."""

from __future__ import annotations

from app.control.sender import Sender
from app.models import Models
from engine.wire.commands import BeginBranch, Fork, Step, SubmitPrompt
from engine.wire.events import Failed, ForkMade, Submitted, WentTo


class NewSequences:
    """The commands that ask for a sequence or branch, by id, until they are answered."""

    def __init__(self, models: Models, sender: Sender) -> None:
        self._models, self._sender = models, sender
        self._awaited: dict[int, Fork | SubmitPrompt | BeginBranch] = {}
        self._joined_by = -1  # id of the newest command that joins sequences of other branches to the live batch

    @property
    def is_empty(self) -> bool:
        return not self._awaited

    @property
    def replace_all(self) -> bool:
        """Whether a prompt was sent that will replace all present sequences."""
        return any(isinstance(command, SubmitPrompt) and command.alone for command in self._awaited.values())

    def expect(self, number: int, command: Fork | SubmitPrompt) -> None:
        self._awaited[number] = command

    def expect_beside(self, number: int) -> None:
        """Note the id of a command that joins sequences of other branches; they arrive without being selected."""
        self._joined_by = number

    def begin_branch(self, command: BeginBranch) -> None:
        """Ask for a new branch, then for its first step. The engine first goes to the step where the branch begins; its
        own step is sent only when it has got there, so that a refusal does not cause a step from somewhere else."""
        self._awaited[self._sender.post(command)] = command

    def show(self, seq_id: int, answer: Submitted | ForkMade) -> None:
        """Select the sequence that was made, unless it was joined to the live batch."""
        if answer.reply_to == self._joined_by:
            return
        self._awaited.pop(answer.reply_to or 0, None)
        self._models.selection.update(seq_id=seq_id, position=None, step=None)

    def went_to(self, event: WentTo) -> None:
        """If the engine went to where a new branch begins, send the branch's first step."""
        if self._awaited.pop(event.reply_to or 0, None) is not None:
            self._sender.post(Step())

    def refuse(self, failure: Failed) -> None:
        self._awaited.pop(failure.reply_to or 0, None)

    def forget(self) -> None:
        """Drop all that is unanswered: the engine is gone."""
        self._awaited.clear()
