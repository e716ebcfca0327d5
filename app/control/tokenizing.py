"""Has the tokens of a text or conversation counted while it is typed; answers to older texts are dropped."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from app.control.sender import Sender
from engine.spec.chat import Chat
from engine.spec.sampling import Prompt
from engine.wire.commands import PreviewPrompt, Tokenize
from engine.wire.events import Failed, Previewed, Tokenized


class Tokenizing(QObject):
    """Signals: `counted(token_ids)`; for a conversation `previewed(answer)` before it; or `refused(why)`."""

    counted = Signal(object)
    previewed = Signal(object)
    refused = Signal(str)

    def __init__(self, sender: Sender) -> None:
        super().__init__()
        self._sender = sender
        self._asked: list[int] = []  # ids of the commands that are not answered yet, oldest first

    def ask(self, text: str) -> None:
        self._asked.append(self._sender.post(Tokenize(text)))

    def ask_of_chat(self, chat: Chat, after: int | None) -> None:
        """Ask how a conversation is rendered, and how many tokens of sequence `after` it would reuse."""
        self._asked.append(self._sender.post(PreviewPrompt(Prompt(chat=chat), after)))

    def take(self, answer: Tokenized | Previewed) -> None:
        if not self._is_newest(answer):
            return
        if isinstance(answer, Previewed):
            self.previewed.emit(answer)
        self.counted.emit(answer.token_ids)

    def refuse(self, failure: Failed) -> bool:
        """Whether the failure answers one of these questions; the prompt then shows it if it is the newest."""
        if failure.reply_to not in self._asked:
            return False
        if self._is_newest(failure):
            self.refused.emit(failure.message)
        return True

    def forget(self) -> None:
        """Drop all that is unanswered: the engine is gone."""
        self._asked.clear()

    def _is_newest(self, answer: Tokenized | Previewed | Failed) -> bool:
        """Whether it answers the newest question. Older questions get no answer after it, and are dropped."""
        if answer.reply_to not in self._asked:
            return False
        self._asked = [number for number in self._asked if number >= (answer.reply_to or 0)]
        return self._asked == [answer.reply_to]
