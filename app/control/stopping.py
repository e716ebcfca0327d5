"""Sends the conditions that halt a run, and asks for the attention of past steps when a search needs it."""

from __future__ import annotations

from app.control.sender import Sender
from app.kit.question import Question
from app.models import Models
from app.models.search import Place
from app.models.stops import spans_in
from engine.spec.stops import Stop, read_stops
from engine.wire.events import Failed
from engine.wire.stopping import AttentionPlace, MeasureAttention, SetStops

LONGEST = 80  # characters of a condition in a sentence


class Stopping:
    """The only writer of `Models.stops`."""

    def __init__(self, models: Models, sender: Sender) -> None:
        self._models, self._sender = models, sender
        models.stops.attention_wanted.connect(self.ask)

    def set(self, stops: tuple[Stop, ...]) -> None:
        """Replace the stops; if no engine has started yet, they are sent when one has."""
        self._models.stops.set(stops)
        if self._models.status.now is not None:
            self._sender.post(SetStops(stops))

    def bring_back(self, texts: tuple[str, ...]) -> None:
        """Set the stops of an opened session, if it has any, and report one that cannot be read."""
        stops, others = read_stops(texts)
        if stops:
            self.set(stops)
        if others:
            words = f"A breakpoint of this session cannot be read and is left out: {others[0][:LONGEST]}"
            self._models.status.notify(words + (f" (and {len(others) - 1} more)" if len(others) > 1 else ""))

    def repeat(self) -> None:
        """Send the stops to an engine that has just started, which has none."""
        if self._models.stops.stops:
            self._sender.post(SetStops(self._models.stops.stops))

    def ask(self, places: tuple[Place, ...]) -> None:
        """Ask how much attention went to the spans of those places."""
        counts = {
            (step, seq_id): part.num_tokens
            for step, seq_id, _ in places
            if (part := self._models.timeline.part(seq_id, step)) is not None
        }
        wanted = tuple(AttentionPlace(step, seq_id, count) for (step, seq_id), count in counts.items())
        question = MeasureAttention(wanted, spans_in(places))
        self._sender.ask(Question(question, self._models.stops.take_masses, self._stay_unknown, slot=MeasureAttention))

    def _stay_unknown(self, _failure: Failed) -> None:
        self._models.stops.take_masses(None)
