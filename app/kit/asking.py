"""A panel that shows the answer to a question, and asks again when what it is about has changed."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from app.kit.provenance import Provenance
from app.kit.question import Question
from app.kit.reader import STATUS, STEPS, SignalSource, State
from app.kit.view import View
from app.models import Models
from engine.wire.events import Failed
from engine.wire.message import Command

SERVERS = SignalSource("servers")


def source_of(models: Models) -> Provenance:
    """Where what is said of the chosen server comes from, or of this session's page pool, where none is chosen."""
    server = models.servers.now
    if server is None:
        return Provenance("page pool", "live cache", "The pages of this session that prompts can find")
    kind = {"connected": "live cache", "recorded": "recorded"}.get(server.state, "stale")
    return Provenance(server.state, kind, server.words)


class AnswerView(View[State]):
    """A subclass says what it asks in `question`, None for nothing; `answer` is the newest one, or the refusal's
    sentence, and None before. One question at a time is on its way, unless another is asked meanwhile."""

    follows = (SERVERS, STATUS, STEPS)

    answer: Any = None
    _asked: tuple[Command | None, Hashable] = (None, None)
    _is_waiting = False

    def question(self) -> Command | None:
        """What to ask now."""
        raise NotImplementedError

    def want(self, *, is_visible: bool) -> None:
        command = self.question() if is_visible else None
        if command is None or (self._is_waiting and command == self._asked[0]):
            return
        key = command, self._wanted_from(command)
        if key != self._asked:
            self._asked, self._is_waiting = key, True
            self.wants.emit(Question(command, self._on_answer, self._on_refusal, slot=self.title))

    def _wanted_from(self, command: Any) -> Hashable:
        """What the answer depends on besides the question."""
        server = self._models.servers.now
        if command.server:
            return server.num_batches if server is not None else None
        status = self._models.status.now
        if self._models.status.is_running:
            return self._asked[1]  # reading a large pool costs a run more than it is worth
        return status.step, status.cache, status.model is None

    def _on_answer(self, answer: Any) -> None:
        self._is_waiting, self.answer = False, answer
        self.refresh()

    def _on_refusal(self, failed: Failed) -> None:
        self._is_waiting = False
        self.answer = failed.message or self.answer
        if not failed.message:
            self._asked = None, None  # the engine is another one by now
        self.refresh()
