"""Whether a condition holds at a recorded step, with the values that it is about: the same for a run and for its past.

A value that is not there (no token was chosen, rows are not kept) is not known; a comparison with it is neither true
nor false, and neither is its opposite.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from engine.spec.condition import And, Condition, ConditionTerm, Not, Or, TokenSpan, comparisons_of, quoted
from engine.spec.pattern import TooSlow, has_match, newest_match
from engine.wire.page_events import PageAllocated, PageEvicted, PageMoved, PageShared
from engine.wire.records import SequenceStep, StepRecord, has_chosen
from engine.wire.row_norms import Norms, norm_ratio

TEXT_TAIL = 1000  # characters of the text before a step that a pattern may reach back to
RECENT = TokenSpan(newest=16)  # what an `AttentionSummary` sums, beside position 0
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
    """The mass that the newest query's attention puts on a span of tokens: the mean of all layers and heads, and that
    of the head where it is most."""

    mean: float
    peak: float


class Surroundings(Protocol):
    """What a record does not hold of its step; None is not known."""

    def text_before(self, part: SequenceStep) -> str:
        """The last characters, up to `TEXT_TAIL`, of the tokens before those that were fed."""

    def norms_before(self, seq_id: int) -> Norms | None:
        """The norms of the rows of a sequence before those of the step."""

    def attention(self, step: int, part: SequenceStep, span: TokenSpan) -> Attention | None:
        """What attention the newest query gave to a span."""

    def differs(self, step: int, seq_id: int) -> bool | None:
        """Whether the compared run puts another token first."""


@dataclass(frozen=True)
class ConditionVerdict:
    """Whether a condition holds at a step (None: not known), for which sequence, and the values in words."""

    holds: bool | None
    seq_id: int | None = None
    value: str = ""


class Judge:
    """Says whether conditions hold. A pattern that takes too long is given up: `too_slow` has it, and what it is asked
    from then on is not known."""

    def __init__(self, surroundings: Surroundings, too_slow: set[str] | None = None) -> None:
        self._around = surroundings
        self.too_slow: set[str] = set() if too_slow is None else too_slow

    def verdict(self, condition: Condition, record: StepRecord) -> ConditionVerdict:
        """Whether the condition holds for some sequence of the step."""
        answers = [(self._holds(condition, record, part), part) for part in record.sequences]
        for holds, part in answers:
            if holds:
                return ConditionVerdict(True, part.seq_id, self.value(condition, record, part))
        return ConditionVerdict(None if any(holds is None for holds, _ in answers) else False)

    def value(self, condition: Condition, record: StepRecord, part: SequenceStep) -> str:
        """The values that a condition is about, in words."""
        words = {_name(test): self._in_words(test, record, part) for test in comparisons_of(condition)}
        return " · ".join(f"{name} {value}".rstrip() for name, value in words.items())

    # ---- logic of three values -----------------------------------------------------------------------------------

    def _holds(self, condition: Condition, record: StepRecord, part: SequenceStep) -> bool | None:
        match condition:
            case ConditionTerm():
                return self._test(condition, record, part)
            case Not(inner):
                holds = self._holds(inner, record, part)
                return None if holds is None else not holds
            case And(parts):
                return self._decided(False, parts, record, part)
            case Or(parts):
                return self._decided(True, parts, record, part)

    def _decided(self, by: bool, parts: tuple[Condition, ...], record: StepRecord, part: SequenceStep) -> bool | None:
        """One part that is `by` decides; all have to be known for the opposite."""
        unknown = False
        for each in parts:
            holds = self._holds(each, record, part)
            if holds is by:
                return by
            unknown |= holds is None
        return None if unknown else not by

    # ---- one comparison ------------------------------------------------------------------------------------------

    def _test(self, test: ConditionTerm, record: StepRecord, part: SequenceStep) -> bool | None:
        match test.quantity:
            case "differs":
                return self._around.differs(record.step, part.seq_id)
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
        """Whether one of the tokens is the one, or fits the pattern."""
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
        """What the pattern matches that ends in what the step brought: the tokens of a prompt and a forced token when
        they are fed, any other when it is chosen."""
        before, fed = self._around.text_before(part), "".join(part.texts)
        chosen = part.sampled_text if has_chosen(part) else ""
        is_new = part.phase == "prefill" or part.forced
        try:
            return newest_match(str(test.value), before + fed + chosen, len(before) + (0 if is_new else len(fed)))
        except TooSlow:
            self.too_slow.add(str(test.value))
            return None

    def _number(self, test: ConditionTerm, record: StepRecord, part: SequenceStep) -> float | None:
        """The number that a test is about; None where it is not known."""
        name = test.quantity
        if test.span is not None:
            return self._attention(test, test.span, record, part)
        if name in _PAGE_EVENTS:
            return float(sum(isinstance(event, _PAGE_EVENTS[name]) for event in record.page_events))
        if name == "norm":
            return None if part.rows is None else norm_ratio(part.rows, self._around.norms_before(part.seq_id))
        return _NUMBERS[name](record, part)

    def _attention(self, test: ConditionTerm, span: TokenSpan, record: StepRecord, part: SequenceStep) -> float | None:
        mass = recorded_attention(record, part, span) or self._around.attention(record.step, part, span)
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
    """What the record itself says of a span: position 0 and the last 16, where no row was dropped."""
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
    """Nothing is known before all of a long prompt is."""
    if None in part.surprisal[1:]:
        return None
    return max((each for each in part.surprisal if each is not None), default=None)


def _rows_dropped(record: StepRecord, part: SequenceStep) -> float:
    """The tokens that lost rows, each once."""
    dropped = [each.positions for each in record.evictions if each.seq_id == part.seq_id]
    return float(np.unique(np.concatenate(dropped)).size) if dropped else 0.0


_NUMBERS: dict[str, Callable[[StepRecord, SequenceStep], float | None]] = {
    "entropy": lambda record, part: part.entropy,
    "probability": _probability,
    "margin": _margin,
    "surprisal": _surprisal,
    "nonfinite": lambda record, part: float(sum(place.count for place in record.non_finite)),
    "rows_dropped": _rows_dropped,
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
        return f"{100 * value:.4g} %"
    if unit == "bytes" and value >= 1024:
        power = min(3, int(math.log2(value)) // 10)
        return f"{value / 1024**power:,.4g} {('KiB', 'MiB', 'GiB')[power - 1]}"
    return f"{int(value):,}" if value == value // 1 and abs(value) < 1e15 else f"{value:.4g}"
