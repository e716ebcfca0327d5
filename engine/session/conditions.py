"""Evaluates stop conditions at the step just done, with what only the session knows: earlier text, attention, norms of
earlier rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import torch

from engine.cache.stacking import on_one_device
from engine.errors import InputError
from engine.session.session import Session
from engine.spec.breakpoints import ConditionSetting, parsed, why_never
from engine.spec.condition import Condition, TokenSpan, comparisons_of
from engine.wire.breakpoints import AttentionMass, AttentionMeasured, BreakpointHit, MeasureAttention
from engine.wire.condition_values import TEXT_TAIL, Attention, ConditionEvaluator, Norms, with_rows
from engine.wire.records import SequenceStep, StepRecord

KEPT_STEPS = 256  # steps whose row norms are kept, so that they are still known after going back
MAX_PLACES = 4096
ROOT = -1  # stands for the parent of a first step

# called with a step and a seq_id: whether the other run of a comparison ranks another token first; None: not known
Differs = Callable[[int, int], bool | None]


def not_compared(_step: int, _seq_id: int) -> None:
    """The `Differs` of a session that is not compared with another run."""


class ConditionChecker:
    """Evaluates conditions, and remembers what they need from earlier steps: norms of rows, and which patterns took too
    long. `live_step` is the newest step on the live path."""

    def __init__(self) -> None:
        self.too_slow: set[str] = set()
        self.live_step: int | None = None
        self._norms: OrderedDict[int, dict[int, Norms]] = OrderedDict()  # after a step, by sequence

    def hits(
        self,
        session: Session,
        record: StepRecord,
        asked: Iterable[tuple[int | None, str]],
        differs: Differs = not_compared,
    ) -> list[BreakpointHit]:
        """Which of the conditions `asked` (id of the breakpoint, its text) hold at the step of `record`."""
        conditions = [(breakpoint_id, text, parsed(text)) for breakpoint_id, text in asked]
        norms = self._norms_before(record, [condition for _, _, condition in conditions])
        judge = ConditionEvaluator(SessionSurroundings(session, norms, differs), self.too_slow)
        found = []
        for breakpoint_id, text, condition in conditions:
            verdict = judge.verdict(condition, record)
            if verdict.holds and verdict.seq_id is not None:
                found.append(BreakpointHit(breakpoint_id, text, record.step, verdict.seq_id, verdict.value))
        self.live_step = record.step
        return found

    def forget(self) -> None:
        """Forget everything that was remembered, because the history was cleared."""
        self._norms.clear()
        self.live_step = None

    def _norms_before(self, record: StepRecord, conditions: list[Condition]) -> dict[int, Norms]:
        """The norms of the rows before the step, by sequence, if a condition is about norms; those after the step are
        remembered for the next one."""
        if not any(each.quantity == "norm" for condition in conditions for each in comparisons_of(condition)):
            return {}
        before = self._norms.get(self._parent_of(record), {})
        new = {part.seq_id: with_rows(before.get(part.seq_id), part.rows) for part in record.sequences if part.rows}
        self._norms[record.step] = {**before, **new}
        if len(self._norms) > KEPT_STEPS:
            self._norms.popitem(last=False)
        return before

    def _parent_of(self, record: StepRecord) -> int:
        """The previous step on the path; a node without a forward, such as an edit, is skipped."""
        live_step, parent = self.live_step, record.parent
        if parent is None:
            return ROOT
        if live_step is not None and live_step < parent and parent not in self._norms:
            return live_step
        return parent


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
    """Gives the judge of conditions what lies outside a record: text, attention, row norms and the comparison. `norms`
    are those of the rows before the step, by sequence; `differs` asks the running comparison."""

    def __init__(self, session: Session, norms: dict[int, Norms], differs: Differs) -> None:
        self._session, self._norms, self._differs = session, norms, differs

    def text_before(self, part: SequenceStep) -> str:
        return tail_of(self._session.sequence(part.seq_id).token_ids, part.first_position, self._session.text_of)

    def norms_before(self, seq_id: int) -> Norms | None:
        return self._norms.get(seq_id)

    def attention(self, step: int, part: SequenceStep, span: TokenSpan) -> Attention | None:
        rows = self._session.history.attention.get((step, part.seq_id)) or {}
        return attention_mass(rows, part.num_tokens, span)

    def differs(self, step: int, seq_id: int) -> bool | None:
        return self._differs(step, seq_id)


def tail_of(token_ids: Sequence[int], count: int, text_of: Callable[[int], str]) -> str:
    """The last `TEXT_TAIL` characters of the text of the first `count` tokens: as far as a pattern may look back."""
    pieces: list[str] = []
    missing = TEXT_TAIL
    while count and missing > 0:
        count -= 1
        pieces.append(text_of(token_ids[count]))
        missing -= len(pieces[-1])
    return "".join(reversed(pieces))[-TEXT_TAIL:]


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
