"""Sequences beside the others: asked for, awaited, and given the tokens that no step of their own fed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.models import Models, Token
from engine.commands import Command, Fork, Step, SubmitPrompt
from engine.config import Prompt
from engine.records import EngineStatus, SequenceStep, StepRecord


class Newcomers:
    """One sequence at a time is on its way; the controller tells when the engine's state is another one."""

    def __init__(self, models: Models, send: Callable[[Command], None]) -> None:
        self._models = models
        self._send = send
        self._known: frozenset[int] | None = None
        self._parent: int | None = None

    @property
    def is_awaited(self) -> bool:
        return self._known is not None

    def add(self, prompt: Prompt) -> None:
        """Ask for a sequence beside those that are there."""
        self._await()
        self._send(SubmitPrompt(prompt, alone=False))

    def fork(self, seq_id: int) -> None:
        """Ask for a branch of a sequence."""
        self._await()
        self._parent = seq_id
        self._send(Fork(seq_id))

    def failed(self) -> None:
        self._known = self._parent = None

    def take(self, status: EngineStatus) -> None:
        """The sequence that was asked for has come: show it, and read its prompt."""
        new = [info for info in status.sequences if self._known is not None and info.seq_id not in self._known]
        if not new:
            return
        info, parent = new[-1], self._parent
        self._known = self._parent = None
        if parent is not None:
            self._models.timeline.branch(info.seq_id, parent, info.num_tokens)
        elif not status.running:
            self._send(Step())
        self._models.selection.update(seq_id=info.seq_id, position=None, step=None)

    def before(self, record: StepRecord, part: SequenceStep) -> Sequence[Token]:
        """The tokens of a sequence that no step of its own fed: of its parent, or of the prefix it shares."""
        if self._parent is not None and part.seq_id not in (self._known or ()):
            return self._models.timeline.tokens(self._parent)[: part.first_position]
        served = self._models.pages.served(part, record)
        # a page whose tokens nobody told keeps its places: positions must never move
        served += ((0, "\ufffd"),) * (part.first_position - len(served))
        return [
            Token(position, token_id, text, None, record.step, False, position < part.num_prompt_tokens, True)
            for position, (token_id, text) in enumerate(served)
        ]

    def _await(self) -> None:
        status = self._models.status.now
        self._known = frozenset(info.seq_id for info in status.sequences) if status is not None else frozenset()
