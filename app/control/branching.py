"""The branches that a person asked for and the engine has not begun yet: each is stepped once when it is there."""

from __future__ import annotations

from app.control.sender import Sender
from engine.wire.commands import Branch, Step
from engine.wire.events import Failed, WentTo


class Branching:
    """A branch goes to a step before it takes another road. Its first step is asked for only then: where the engine
    refused to go there, no step is taken from where it stands."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._awaited: set[int] = set()

    @property
    def is_empty(self) -> bool:
        return not self._awaited

    def begin(self, command: Branch) -> None:
        """Ask for a branch and its first step."""
        self._awaited.add(self._sender.post(command))

    def take(self, event: WentTo) -> None:
        """The engine went somewhere, for a branch or not."""
        if event.reply_to in self._awaited:
            self._awaited.discard(event.reply_to or 0)
            self._sender.post(Step())

    def refuse(self, failure: Failed) -> None:
        self._awaited.discard(failure.reply_to or 0)

    def forget(self) -> None:
        """No answer comes any more."""
        self._awaited.clear()
