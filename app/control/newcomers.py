"""Sequences beside the others: asked for, awaited, and given the tokens that no step of their own fed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.models import Models, Token
from engine.spec.sampling import Prompt
from engine.wire.commands import Command, Fork, SubmitPrompt
from engine.wire.records import Forked, SequenceStep, StepRecord, Submitted


class Newcomers:
    """Asks for sequences and shows each when the engine says that it is there; any number may be on their way."""

    def __init__(self, models: Models, send: Callable[[Command], None]) -> None:
        self._models = models
        self._send = send
        self._num_awaited = 0

    @property
    def is_awaited(self) -> bool:
        return self._num_awaited > 0

    def add(self, prompt: Prompt) -> None:
        """Ask for a sequence beside those that are there; its prompt is read at once."""
        self._num_awaited += 1
        self._send(SubmitPrompt(prompt, alone=False, num_steps=1))

    def fork(self, seq_id: int, step: int | None) -> None:
        """Ask for a branch of a sequence from where it stood after a step (None: from where it stands)."""
        self._num_awaited += 1
        self._send(Fork(seq_id, step))

    def refused(self) -> None:
        """One of those asked for does not come."""
        self._num_awaited = max(0, self._num_awaited - 1)

    def take(self, event: Submitted | Forked) -> None:
        """A sequence has come: show it as it is now."""
        self._num_awaited = max(0, self._num_awaited - 1)
        seq_id = event.child if isinstance(event, Forked) else event.seq_id
        if isinstance(event, Forked):
            self._models.timeline.branch(event.child, event.parent, event.step, event.num_tokens)
        self._models.selection.update(seq_id=seq_id, position=None, step=None)

    def before(self, record: StepRecord, part: SequenceStep) -> Sequence[Token]:
        """The tokens of a sequence that no step of its own fed: those of the prefix it shares."""
        served = self._models.pages.served(part, record)
        # a page whose tokens nobody told keeps its places: positions must never move
        served += ((0, "\ufffd"),) * (part.first_position - len(served))
        return [
            Token(position, token_id, text, None, record.step, False, position < part.num_prompt_tokens, True)
            for position, (token_id, text) in enumerate(served)
        ]
