"""Messages that set breakpoints, measure attention for them and say what held."""

from __future__ import annotations

from typing import ClassVar

from engine.spec.condition import (
    Breakpoint,
    TokenSpan,
)
from engine.wire.message import Answer, Command, Event, Facts, Nested


class SetBreakpoints(Command, frozen=True):
    """Replace the conditions that halt runs. One that can never hold in the cache mode is accepted; the status says why
    it cannot."""

    facts: ClassVar[Facts] = Facts(needs="nothing", effect="looks")

    breakpoints: tuple[Breakpoint, ...]


class AttentionPlace(Nested, frozen=True):
    """The newest query of a sequence at a step, after which the sequence had `num_tokens` tokens."""

    step: int
    seq_id: int
    num_tokens: int


class MeasureAttention(Command, frozen=True):
    """Measure how much attention the newest queries of past steps gave to spans of tokens, as far as their rows are
    kept."""

    facts: ClassVar[Facts] = Facts(answers="one", effect="looks")

    places: tuple[AttentionPlace, ...]
    spans: tuple[TokenSpan, ...]


class BreakpointHit(Event, frozen=True):
    """A condition held at a step and halted the run: that of the breakpoint `breakpoint_id`, or (None) that of the run
    itself. `value` has the compared values of the sequence `seq_id` in words."""

    breakpoint_id: int | None
    condition: str
    step: int
    seq_id: int
    value: str


class BreakpointState(Nested, frozen=True):
    """A breakpoint, and why it can never hold here or is no longer evaluated; empty if it can."""

    breakpoint: Breakpoint
    problem: str = ""


class AttentionMass(Nested, frozen=True):
    """The attention that a query gave to a span: the mean over all heads, and the largest of any head."""

    step: int
    seq_id: int
    span: TokenSpan
    mean: float
    peak: float


class AttentionMeasured(Answer, frozen=True):
    """The measured attention of each span at each place whose rows are still kept."""

    masses: tuple[AttentionMass, ...]
