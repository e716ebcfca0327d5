"""A condition at a recorded step: whether it holds and the values it compares, during a run and on past steps alike."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from engine.counted import significant
from engine.spec.condition import (
    Condition,
    ConditionTerm,
    TokenSpan,
    TooSlow,
    Truth,
    comparisons_of,
    has_match,
    newest_match,
    outcomes,
    quoted,
)
from engine.wire.pages import PageAllocated, PageEvicted, PageMoved, PageShared
from engine.wire.records import SequenceStep, StepRecord, has_chosen

# A value may be unknown (no token was chosen, rows are no longer kept). A comparison with it is neither true nor false,
# and neither is its negation.

TEXT_TAIL = 1000  # characters before a step that are searched for a pattern
RECENT = TokenSpan(newest=16)  # the span, beside position 0, of which an `AttentionSummary` has the mass
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_PAGE_EVENTS = {
    "pages_allocated": PageAllocated,
    "pages_shared": PageShared,
    "pages_evicted": PageEvicted,
    "pages_moved": PageMoved,
}


@dataclass(frozen=True)
class Attention:
    """Attention mass that the newest query gives to a span of tokens: the mean over all layers and heads, and the
    largest of any head."""

    mean: float
    peak: float


class RecordContext(Protocol):
    """What evaluating a condition needs beside the record of the step; None where a value is unknown."""

    def text_before(self, part: SequenceStep) -> str:
        """The text of the tokens before the computed ones, its last `TEXT_TAIL` characters."""

    def attention(self, step: int, part: SequenceStep, span: TokenSpan) -> Attention | None:
        """The attention of the newest query to a span of tokens."""

    def differs(self, step: int, seq_id: int) -> bool | None:
        """Whether the compared run ranks another token first."""


def tail_of(count: int, text_at: Callable[[int], str | None]) -> str:
    """The last `TEXT_TAIL` characters of the text of the first `count` tokens, whose texts `text_at` gives by position:
    as far as a pattern may look back. It begins behind a token whose text is not known (None)."""
    pieces: list[str] = []
    missing = TEXT_TAIL
    while count and missing > 0 and (text := text_at(count - 1)) is not None:
        pieces.append(text)
        missing -= len(text)
        count -= 1
    return "".join(reversed(pieces))[-TEXT_TAIL:]


@dataclass(frozen=True)
class ConditionVerdict:
    """The outcome of a condition at a step (`holds` None: unknown), the sequence for which it holds, and the compared
    values in words."""

    holds: bool | None
    seq_id: int | None = None
    value: str = ""


class ConditionEvaluator:
    """Evaluates conditions. A pattern whose search takes too long is added to `too_slow` and unknown from then on."""

    def __init__(self, context: RecordContext, too_slow: set[str] | None = None) -> None:
        self._context = context
        self.too_slow: set[str] = set() if too_slow is None else too_slow

    def verdict(self, condition: Condition, record: StepRecord) -> ConditionVerdict:
        """Whether the condition holds for at least one sequence of the step."""
        answers = [(self._holds(condition, record, part), part) for part in record.sequences]
        for holds, part in answers:
            if holds:
                return ConditionVerdict(True, part.seq_id, self.value(condition, record, part))
        return ConditionVerdict(None if any(holds is None for holds, _ in answers) else False)

    def value(self, condition: Condition, record: StepRecord, part: SequenceStep) -> str:
        """The values that a condition compares, in words."""
        words = {_name(test): self._in_words(test, record, part) for test in comparisons_of(condition)}
        return " · ".join(f"{name} {value}".rstrip() for name, value in words.items())

    def _holds(self, condition: Condition, record: StepRecord, part: SequenceStep) -> Truth:
        (holds,) = outcomes(condition, lambda test: frozenset((self._test(test, record, part),)))
        return holds

    # ---- one comparison ------------------------------------------------------------------------------------------

    def _test(self, test: ConditionTerm, record: StepRecord, part: SequenceStep) -> bool | None:
        match test.quantity:
            case "differs":
                return self._context.differs(record.step, part.seq_id)
            case "token":
                if part.sampled is None or not has_chosen(part):
                    return None
                return self._is_token(test, [part.sampled], [part.sampled_text])
            case "fed":
                return self._is_token(test, part.token_ids, part.texts)
            case "text":
                return None if test.value in self.too_slow else self._match(test, part) is not None
        value = self._number(test, record, part)
        if value is None or math.isnan(value):
            return None
        return _COMPARE[str(test.sign)](value, float(test.value or 0.0))

    def _is_token(self, test: ConditionTerm, ids: object, texts: object) -> bool | None:
        """Whether one of the tokens is the wanted one or matches the pattern."""
        wanted = test.value
        if test.sign == "~":
            return self._fits(str(wanted), texts)  # type: ignore[arg-type]
        found = wanted in texts if isinstance(wanted, str) else int(wanted or 0) in ids  # type: ignore[operator]
        return found if test.sign == "=" else not found

    def _fits(self, pattern: str, texts: tuple[str, ...]) -> bool | None:
        if pattern in self.too_slow:
            return None
        try:
            return any(has_match(pattern, text) for text in texts)
        except TooSlow:
            self.too_slow.add(pattern)
            return None

    def _match(self, test: ConditionTerm, part: SequenceStep) -> str | None:
        """The match of the pattern that ends in the text that this step added. Tokens of a prompt and forced tokens
        count as added when they are computed, all others when they are chosen."""
        before, computed = self._context.text_before(part), "".join(part.texts)
        chosen = part.sampled_text if has_chosen(part) else ""
        is_new = part.phase == "prefill" or part.forced
        try:
            return newest_match(
                str(test.value), before + computed + chosen, len(before) + (0 if is_new else len(computed))
            )
        except TooSlow:
            self.too_slow.add(str(test.value))
            return None

    def _number(self, test: ConditionTerm, record: StepRecord, part: SequenceStep) -> float | None:
        """The number that a comparison is about; None if it is unknown."""
        name = test.quantity
        if test.span is not None:
            return self._attention(test, test.span, record, part)
        if name in _PAGE_EVENTS:
            return float(sum(isinstance(event, _PAGE_EVENTS[name]) for event in record.page_events))
        return _NUMBERS[name](record, part)

    def _attention(self, test: ConditionTerm, span: TokenSpan, record: StepRecord, part: SequenceStep) -> float | None:
        mass = recorded_attention(record, part, span) or self._context.attention(record.step, part, span)
        if mass is None:
            return None
        return mass.mean if test.quantity == "attention" else mass.peak

    # ---- words ---------------------------------------------------------------------------------------------------

    def _in_words(self, test: ConditionTerm, record: StepRecord, part: SequenceStep) -> str:
        match test.quantity:
            case "differs":
                return ""
            case "token":
                return _token(part.sampled, part.sampled_text)
            case "fed":
                return ", ".join(map(_token, part.token_ids[-3:], part.texts[-3:]))
            case "text":
                found = None if test.value in self.too_slow else self._match(test, part)
                return "no match" if found is None else quoted(found[-60:])
        value = self._number(test, record, part)
        if value is None or math.isnan(value):
            return "not known"
        return _written(value, test.row.unit)


def recorded_attention(record: StepRecord, part: SequenceStep, span: TokenSpan) -> Attention | None:
    """The attention to a span as far as the record itself has it: to position 0 and to the last 16, if no row was
    evicted."""
    summary = part.attention
    if summary is None or not record.cache.retention.keeps_all or span not in (TokenSpan(), RECENT):
        return None
    mass = summary.first_mass if span == TokenSpan() else summary.recent_mass
    if np.isnan(mass).all():
        return None
    return Attention(float(np.nanmean(mass)), float(np.nanmax(mass)))


def _probability(_record: StepRecord, part: SequenceStep) -> float | None:
    return next((each.prob for each in part.candidates if each.token_id == part.sampled), None)


def _margin(_record: StepRecord, part: SequenceStep) -> float | None:
    top = sorted((each.prob for each in part.candidates), reverse=True)
    return top[0] - top[1] if len(top) > 1 else None


def _surprisal(_record: StepRecord, part: SequenceStep) -> float | None:
    """The largest surprisal; None while that of a long prompt is not fully computed."""
    if None in part.surprisal[1:]:
        return None
    return max((each for each in part.surprisal if each is not None), default=None)


def _rows_evicted(record: StepRecord, part: SequenceStep) -> float:
    """How many tokens lost rows in any layer or head."""
    evicted = [each.positions for each in record.evictions if each.seq_id == part.seq_id]
    return float(np.unique(np.concatenate(evicted)).size) if evicted else 0.0


_NUMBERS: dict[str, Callable[[StepRecord, SequenceStep], float | None]] = {
    "entropy": lambda record, part: part.entropy,
    "probability": _probability,
    "margin": _margin,
    "surprisal": _surprisal,
    "norm": lambda record, part: part.norm_ratio,
    "nonfinite": lambda record, part: float(sum(place.count for place in record.non_finite)),
    "rows_evicted": _rows_evicted,
    "preempted": lambda record, part: float(len(record.preempted)),
    "stored": lambda record, part: float(record.num_bytes.stored),
    "reserved": lambda record, part: float(record.num_bytes.reserved),
    "step": lambda record, part: float(record.step),
    "tokens": lambda record, part: float(part.num_tokens),
    "sequence": lambda record, part: float(part.seq_id),
}


def _name(test: ConditionTerm) -> str:
    return test.quantity if test.span is None else f"{test.quantity}({test.span})"


def _token(token_id: int | None, text: str) -> str:
    return "none" if token_id is None else f"{quoted(text)} ({token_id})"


def _written(value: float, unit: str) -> str:
    if unit == "ratio":
        return f"{significant(100 * value, 4)} %"
    if unit == "bytes" and value >= 1024:
        power = min(3, int(math.log2(value)) // 10)
        return f"{value / 1024**power:,.1f} {('KiB', 'MiB', 'GiB')[power - 1]}"
    return f"{int(value):,}" if value == value // 1 and abs(value) < 1e15 else significant(value, 4)
