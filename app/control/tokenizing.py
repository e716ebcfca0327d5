"""Has the tokens of a text counted while it is typed; only the answer to the newest text counts."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from app.control.sender import Sender
from engine.wire.commands import Tokenize
from engine.wire.events import Failed, Tokenized


class Tokenizing(QObject):
    """News: `counted(token_ids)`, or `refused(why)`."""

    counted = Signal(object)
    refused = Signal(str)

    def __init__(self, sender: Sender, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._sender = sender
        self._asked: list[int] = []  # the ids of what was asked and not answered yet, oldest first

    def ask(self, text: str) -> None:
        self._asked.append(self._sender.post(Tokenize(text)))

    def take(self, answer: Tokenized) -> None:
        if self._is_newest(answer):
            self.counted.emit(answer.token_ids)

    def refuse(self, failure: Failed) -> bool:
        """Whether it was asked here: then the prompt says why, and nobody else."""
        if failure.reply_to not in self._asked:
            return False
        if self._is_newest(failure):
            self.refused.emit(failure.message)
        return True

    def forget(self) -> None:
        """No answer comes any more."""
        self._asked.clear()

    def _is_newest(self, answer: Tokenized | Failed) -> bool:
        """Whether it answers what stands there now; older ones, which it overtook, are answered no more."""
        if answer.reply_to not in self._asked:
            return False
        self._asked = [number for number in self._asked if number >= (answer.reply_to or 0)]
        return self._asked == [answer.reply_to]
