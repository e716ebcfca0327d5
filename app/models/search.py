"""Finds the steps of the timeline at which a condition held, piece by piece, so that a long history does not block the
window.

A condition is evaluated by the same `ConditionEvaluator` that halts a run. Attention to spans that no record contains
is asked of the engine; if it has dropped the rows, the answer is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

from app.models.comparison import Comparison
from app.models.timeline import Timeline
from engine.spec.condition import TokenSpan, comparisons_of, spans_of
from engine.spec.stops import parsed
from engine.wire.condition_values import (
    TEXT_TAIL,
    Attention,
    ConditionEvaluator,
    ConditionVerdict,
    Norms,
    recorded_attention,
    with_rows,
)
from engine.wire.records import SequenceStep, StepRecord

# (step, seq_id, span of tokens): where the attention is asked for.
Place = tuple[int, int, TokenSpan]
Masses = Mapping[Place, Attention | None]


class Search:
    """The search for one condition in the records of the path, in order. `matches` are the steps at which it held,
    ascending; `num_unknown` counts the steps for which that is not known."""

    def __init__(self, text: str, timeline: Timeline, comparison: Comparison, masses: Masses) -> None:
        self.text, self.condition = text, parsed(text)
        self.spans = spans_of(self.condition)
        self.matches: list[int] = []
        self.verdicts: dict[int, ConditionVerdict] = {}
        self.num_unknown = self.num_seen = 0
        self._timeline, self._comparison, self._masses = timeline, comparison, masses
        self._norms: dict[int, Norms] = {}
        self._tails: dict[int, tuple[int, str]] = {}  # seq_id -> (number of tokens, the end of their text)
        self._has_text = any(each.quantity == "text" for each in comparisons_of(self.condition))
        self._has_norms = any(each.quantity == "norm" for each in comparisons_of(self.condition))
        self._judge = ConditionEvaluator(self)

    @property
    def is_done(self) -> bool:
        """Whether every record was searched."""
        return self.num_seen >= len(self._timeline)

    @property
    def is_too_slow(self) -> bool:
        """Whether the condition's regular expression was given up as too slow."""
        return bool(self._judge.too_slow)

    def go_on(self, deadline: float) -> bool:
        """Search further records until `deadline` (of `perf_counter`), at least one; returns whether any was
        searched."""
        before, records = self.num_seen, self._timeline.records
        while self.num_seen < len(records):
            self._take(records[self.num_seen])
            if perf_counter() >= deadline:
                break
        return self.num_seen > before

    def missing(self, index: int) -> list[Place]:
        """The places of a record, by index, whose attention has to be asked of the engine."""
        record = self._timeline.records[index]
        return [
            (record.step, part.seq_id, span)
            for part in record.sequences
            for span in self.spans
            if (record.step, part.seq_id, span) not in self._masses
            and recorded_attention(record, part, span) is None
            and part.attention is not None
        ]

    def _take(self, record: StepRecord) -> None:
        self.num_seen += 1
        verdict = self._judge.verdict(self.condition, record)
        if verdict.holds:
            self.matches.append(record.step)
            self.verdicts[record.step] = verdict
        self.num_unknown += verdict.holds is None
        if self._has_text:
            for part in record.sequences:
                self._tails[part.seq_id] = part.num_tokens, (self.text_before(part) + "".join(part.texts))[-TEXT_TAIL:]
        if self._has_norms:
            for part in record.sequences:
                if part.rows is not None:
                    self._norms[part.seq_id] = with_rows(self._norms.get(part.seq_id), part.rows)

    # ---- the `RecordContext` of the evaluator: what a record alone does not contain ----------------------------------

    def text_before(self, part: SequenceStep) -> str:
        count, tail = self._tails.get(part.seq_id, (0, ""))
        if count == part.first_position:
            return tail
        pieces: list[str] = []
        missing, position = TEXT_TAIL, part.first_position
        while position and missing > 0:
            position -= 1
            token = self._timeline.token(part.seq_id, position)
            if token is None:
                break
            pieces.append(token.text)
            missing -= len(token.text)
        return "".join(reversed(pieces))[-TEXT_TAIL:]

    def norms_before(self, seq_id: int) -> Norms | None:
        return self._norms.get(seq_id)

    def attention(self, step: int, part: SequenceStep, span: TokenSpan) -> Attention | None:
        return self._masses.get((step, part.seq_id, span))

    def differs(self, step: int, seq_id: int) -> bool | None:
        compared, found = self._comparison.now, self._comparison.at(step)
        if compared is None or compared.seq_id != seq_id or found is None or found.step != step:
            return None
        return None if found.top1_agrees is None else not found.top1_agrees
