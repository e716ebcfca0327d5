"""Conditions that halt runs: which there are, what they ask of past steps, and what held."""

from __future__ import annotations

from engine.spec.condition import TokenSpan
from engine.spec.stops import Stop
from engine.wire.message import CommandMessage, EventMessage, Part


class SetStops(CommandMessage, frozen=True):
    """The conditions that halt runs from now on, in place of those before. One that can never hold in the cache mode is
    taken, and the status says why."""

    stops: tuple[Stop, ...]


class AttentionPlace(Part, frozen=True):
    """The newest query of a sequence at a step, after which it had so many tokens."""

    step: int
    seq_id: int
    num_tokens: int


class MeasureAttention(CommandMessage, frozen=True):
    """Say how much attention the newest queries of past steps gave to some spans of tokens, where their rows are still
    kept."""

    places: tuple[AttentionPlace, ...]
    spans: tuple[TokenSpan, ...]


class StopHit(EventMessage, frozen=True):
    """A condition held at a step, and halted what ran: that of the stop `stop_id`, or of a run (None). `value` has the
    values that it is about, of the sequence `seq_id`."""

    stop_id: int | None
    condition: str
    step: int
    seq_id: int
    value: str


class StopState(Part, frozen=True):
    """A stop, how often it held, and why it never can here, or is not asked any more; empty where it can."""

    stop: Stop
    num_hits: int = 0
    problem: str = ""


class AttentionMass(Part, frozen=True):
    """How much attention a query gave to a span: the mean of all heads, and that of the head where it is most."""

    step: int
    seq_id: int
    span: TokenSpan
    mean: float
    peak: float


class AttentionMeasured(EventMessage, frozen=True):
    """The answers where the rows are still kept, to each of the spans at each of those places."""

    masses: tuple[AttentionMass, ...]
