"""Evaluates conditions at the step just done, with what only the session knows: earlier text and attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from engine.cache.stacking import on_one_device
from engine.errors import InputError
from engine.history.conditions import Attention, ConditionEvaluator, tail_of
from engine.session.session import Session
from engine.spec.condition import ConditionSetting, TokenSpan, parsed, why_never
from engine.wire.breakpoints import AttentionMass, AttentionMeasured, BreakpointHit, MeasureAttention
from engine.wire.records import SequenceStep, StepRecord

MAX_PLACES = 4096

# called with a step and a seq_id: whether the other run of a comparison ranks another token first; None: not known
Differs = Callable[[int, int], bool | None]


def not_compared(_step: int, _seq_id: int) -> None:
    """The `Differs` of a session that is not compared with another run."""


def hits_at(
    session: Session,
    record: StepRecord,
    asked: Iterable[tuple[int | None, str]],
    differs: Differs = not_compared,
    too_slow: set[str] | None = None,
) -> list[BreakpointHit]:
    """Which of the conditions `asked` (id of the breakpoint, its text) hold at the step of `record`. Patterns that take
    too long are added to `too_slow`."""
    judge, found = ConditionEvaluator(SessionSurroundings(session, differs), too_slow), []
    for breakpoint_id, text in asked:
        verdict = judge.verdict(parsed(text), record)
        if verdict.holds and verdict.seq_id is not None:
            found.append(BreakpointHit(breakpoint_id, text, record.step, verdict.seq_id, verdict.value))
    return found


def check_can_hold(text: str, setting: ConditionSetting) -> None:
    """Raise `InputError` if the text is not a condition, or is one that can never hold in this setting."""
    if problem := why_never(parsed(text), setting):
        raise InputError(problem)


def measured(session: Session, command: MeasureAttention) -> AttentionMeasured:
    """The attention mass that past queries gave to spans of tokens; places whose attention is no longer kept are left
    out."""
    if len(command.places) * len(command.spans) > MAX_PLACES:
        raise InputError(f"Attention is measured at {MAX_PLACES:,} places at most: ask for fewer at once.")
    masses = []
    for place in command.places:
        rows = session.history.attention.get((place.step, place.seq_id)) or {}
        for span in command.spans:
            if (mass := attention_mass(rows, place.num_tokens, span)) is not None:
                masses.append(AttentionMass(place.step, place.seq_id, span, mass.mean, mass.peak))
    return AttentionMeasured(tuple(masses))


class SessionSurroundings:
    """Gives the judge of conditions what lies outside a record: text, attention and the comparison, which `differs`
    asks."""

    def __init__(self, session: Session, differs: Differs) -> None:
        self._session, self.differs = session, differs

    def text_before(self, part: SequenceStep) -> str:
        ids = self._session.sequence(part.seq_id).token_ids
        return tail_of(part.first_position, lambda position: self._session.text_of(ids[position]))

    def attention(self, step: int, part: SequenceStep, span: TokenSpan) -> Attention | None:
        rows = self._session.history.attention.get((step, part.seq_id)) or {}
        return attention_mass(rows, part.num_tokens, span)


def attention_mass(rows: dict[int, torch.Tensor], num_tokens: int, span: TokenSpan) -> Attention | None:
    """The mean and the peak over all layers and heads of the attention mass on a span. `rows` `[H, S]` by layer are one
    query's weights; their last column is the newest of `num_tokens` tokens, and evicted rows (NaN) count as 0. None
    where there are no rows, or the span begins behind the newest token."""
    first, stop = (span.first, span.last + 1) if span.newest is None else (max(0, num_tokens - span.newest), num_tokens)
    if not rows or first >= num_tokens:
        return None
    masses = torch.cat(on_one_device(_mass(row, num_tokens, first, stop) for row in rows.values()))
    mean, peak = torch.stack([masses.mean(), masses.amax()]).tolist()
    return Attention(mean, peak)


def _mass(row: torch.Tensor, num_tokens: int, first: int, stop: int) -> torch.Tensor:
    """The mass of every head `[H]` on tokens `first … stop`; tokens before a layer's window count as 0."""
    base = num_tokens - row.shape[1]
    return row[:, max(0, first - base) : max(0, stop - base)].float().nansum(-1)
