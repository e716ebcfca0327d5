"""Sequences and branches that were asked for and do not exist yet. When one does, it is selected or stepped."""

from __future__ import annotations

from app.control.sender import Sender
from app.kit.question import Question
from app.models import Models
from engine.wire.commands import BeginBranch, Fork, JoinBranches, Step, SubmitPrompt
from engine.wire.events import Event, Failed, ForkMade, Submitted, WentTo


class NewSequences:
    """Asks for sequences and branches, and keeps the commands by id until what they ask for exists."""

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

    def ask(self, command: Fork | SubmitPrompt | BeginBranch) -> None:
        """Ask for a sequence, or for a branch and its first step. The engine first goes to the step where the branch
        begins; its own step is sent only when it has got there, so that a refusal does not cause a step from somewhere
        else."""
        self._awaited[self._sender.ask(Question(command, self._take, self._refuse))] = command

    def join(self, command: JoinBranches) -> None:
        """Ask for sequences of other branches beside the live ones; they arrive without being selected."""
        self._joined_by = self._sender.post(command)

    def show(self, seq_id: int, answer: Submitted | ForkMade) -> None:
        """Select the sequence that was made, unless it was joined to the live batch."""
        if answer.reply_to != self._joined_by:
            self._models.selection.update(seq_id=seq_id, position=None, step=None)

    def _take(self, event: Event) -> None:
        if isinstance(event, Submitted | ForkMade | WentTo):
            command = self._awaited.pop(event.reply_to or 0, None)
            if isinstance(event, WentTo) and isinstance(command, BeginBranch):
                self._sender.post(Step())

    def _refuse(self, failure: Failed) -> None:
        self._awaited.pop(failure.reply_to or 0, None)
        if failure.message:
            self._models.status.fail(failure.message)
