"""The conditions that halt a run, and the query that past steps are searched for, with the steps at which each held."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from time import perf_counter

from PySide6.QtCore import QObject, QTimer, Signal

from app.models.comparison import Comparison
from app.models.timeline import Timeline
from engine.errors import InputError
from engine.history.conditions import (
    TEXT_TAIL,
    Attention,
    ConditionEvaluator,
    ConditionVerdict,
    recorded_attention,
    tail_of,
)
from engine.spec.condition import MAX_BREAKPOINTS, Breakpoint, TokenSpan, comparisons_of, parsed, spans_of
from engine.wire.breakpoints import AttentionMeasured, BreakpointHit
from engine.wire.records import SequenceStep, StepRecord

# A condition is evaluated by the same `ConditionEvaluator` that halts a run. Attention to spans that no record
# contains is asked of the engine; if it has evicted the rows, the answer is unknown.

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
        self._tails: dict[int, tuple[int, str]] = {}  # seq_id -> (number of tokens, the end of their text)
        self._has_text = any(each.quantity == "text" for each in comparisons_of(self.condition))
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

    # ---- the `RecordContext` of the evaluator: what a record alone does not contain ----------------------------------

    def text_before(self, part: SequenceStep) -> str:
        count, tail = self._tails.get(part.seq_id, (0, ""))
        if count == part.first_position:
            return tail
        return tail_of(part.first_position, lambda position: self._text_at(part.seq_id, position))

    def _text_at(self, seq_id: int, position: int) -> str | None:
        token = self._timeline.token(seq_id, position)
        return None if token is None else token.text

    def attention(self, step: int, part: SequenceStep, span: TokenSpan) -> Attention | None:
        return self._masses.get((step, part.seq_id, span))

    def differs(self, step: int, seq_id: int) -> bool | None:
        compared, found = self._comparison.now, self._comparison.at(step)
        if compared is None or compared.seq_id != seq_id or found is None or found.step != step:
            return None
        return None if found.top1_agrees is None else not found.top1_agrees


PIECE_S = 0.006  # time of one piece of searching; between pieces the window handles its events
PLACES_AT_ONCE = 256


class Breakpoints(QObject):
    """`listed` are written by the controller alone, which sends them to the engine; `query` by the panel. Signals:
    `changed()`, a breakpoint, the query or a hit; `found()`, the search has progressed; `attention_wanted(places)`, to
    be asked of the engine."""

    changed = Signal()
    found = Signal()
    attention_wanted = Signal(object)

    def __init__(self, timeline: Timeline, comparison: Comparison) -> None:
        super().__init__()
        self._timeline, self._comparison = timeline, comparison
        self.listed: tuple[Breakpoint, ...] = ()
        self.query = ""
        self.hits: dict[int, BreakpointHit] = {}  # by step: the condition at which a run was halted there
        self._masses: dict[Place, Attention | None] = {}
        self._asked: list[Place] = []  # places whose attention was asked of the engine and not answered yet
        self._searches: dict[str, Search] = {}
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self._go_on)
        timeline.texts_due.connect(self._go_on_soon)
        timeline.reset.connect(self._begin_anew)
        timeline.filled.connect(self._begin_anew)
        comparison.changed.connect(self._on_compared)

    # ---- what is set ---------------------------------------------------------------------------------------------

    def set(self, breakpoints: Iterable[Breakpoint]) -> None:
        """Replace the breakpoints."""
        self.listed = tuple(breakpoints)
        self._search_all()
        self.changed.emit()

    def with_added(self, text: str) -> tuple[Breakpoint, ...]:
        """The breakpoints with one more. Raises `InputError` if the condition cannot be parsed or there are too many
        stops."""
        parsed(text)
        if len(self.listed) >= MAX_BREAKPOINTS:
            raise InputError(f"There are {MAX_BREAKPOINTS} breakpoints already: delete one first.")
        return (
            *self.listed,
            Breakpoint(max((breakpoint.id for breakpoint in self.listed), default=0) + 1, text.strip()),
        )

    def search(self, query: str) -> None:
        """Search for the steps at which a condition held; the empty text ends the search. Raises `InputError` if it
        cannot be parsed; the query then stays as it was."""
        if query.strip():
            parsed(query)
        self.query = query.strip()
        self._search_all()
        self.changed.emit()

    def take_hit(self, hit: BreakpointHit) -> None:
        """Note that a run was halted there."""
        self.hits[hit.step] = hit
        self.changed.emit()

    # ---- what was found ------------------------------------------------------------------------------------------

    def of(self, text: str) -> Search | None:
        """The search for the condition of a breakpoint or of the query; None if there is none."""
        return self._searches.get(text)

    @property
    def queried(self) -> Search | None:
        """The search for the query; None without a query."""
        return self._searches.get(self.query) if self.query else None

    def kept(self, text: str) -> Breakpoint | None:
        """The stop with that condition, on or off; None if there is none."""
        return next((breakpoint for breakpoint in self.listed if breakpoint.text == text), None)

    @property
    def halting(self) -> Iterator[tuple[str, Search]]:
        """The enabled stops with the steps at which they held: a run that comes there halts."""
        for breakpoint in self.listed:
            if breakpoint.is_enabled and (search := self._searches.get(breakpoint.text)) is not None:
                yield breakpoint.text, search

    def next_match(self, step: int | None, direction: int) -> int | None:
        """The next (+1) or previous (-1) step after `step` (None: the newest) at which the query held, going round at
        the ends. None if it held nowhere."""
        search = self.queried
        if search is None or not search.matches:
            return None
        latest = self._timeline.latest
        here = step if step is not None else latest.step if latest is not None else 0
        if direction > 0:
            return next((match for match in search.matches if match > here), search.matches[0])
        return next((match for match in reversed(search.matches) if match < here), search.matches[-1])

    # ---- searching -----------------------------------------------------------------------------------------------

    def _search_all(self) -> None:
        wanted = {breakpoint.text for breakpoint in self.listed} | ({self.query} if self.query else set())
        known = self._searches
        self._searches = {text: known.get(text) or self._new(text) for text in sorted(wanted)}
        self._go_on_soon()

    def _new(self, text: str) -> Search:
        return Search(text, self._timeline, self._comparison, self._masses)

    def _begin_anew(self, *_: object) -> None:
        """Search again from the beginning: another path is shown, or records have changed."""
        self._searches = {text: self._new(text) for text in self._searches}
        if not len(self._timeline) and not len(self._timeline.history):  # the history was cleared
            self.hits.clear()
            self._masses.clear()
            self._asked.clear()  # an answer still to come is about the old history's steps
        self._go_on_soon()
        self.changed.emit()

    def _on_compared(self) -> None:
        if any("differs" in text for text in self._searches):
            self._begin_anew()

    def _go_on_soon(self) -> None:
        if any(not search.is_done for search in self._searches.values()) and not self._timer.isActive():
            self._timer.start(0)

    def _go_on(self) -> None:
        """Search some more records, or ask the engine for attention that the next ones need and wait for the answer."""
        if self._asked:
            return
        deadline, is_more = perf_counter() + PIECE_S, False
        for search in self._searches.values():
            if search.spans and (places := self._missing(search)):
                self._asked = places
                self.attention_wanted.emit(tuple(places))
                break
            is_more |= search.go_on(deadline)
            if perf_counter() >= deadline:
                break
        if is_more:
            self.found.emit()
        self._go_on_soon()

    def _missing(self, search: Search) -> list[Place]:
        found: list[Place] = []
        for index in range(search.num_seen, len(self._timeline)):
            found += search.missing(index)
            if len(found) >= PLACES_AT_ONCE:
                break
        return found

    def take_masses(self, answer: AttentionMeasured | None) -> None:
        """Store the engine's answer and search on; None if it has none. A place that is not in the answer is
        unknown."""
        places, self._asked = self._asked, []
        known = {(m.step, m.seq_id, m.span): Attention(m.mean, m.peak) for m in answer.masses} if answer else {}
        self._masses.update({place: known.get(place) for place in places})
        self._go_on_soon()


def spans_in(places: Iterable[Place]) -> tuple[TokenSpan, ...]:
    """The spans of some places, each once."""
    return tuple(dict.fromkeys(span for _, _, span in places))


__all__ = ["Breakpoints", "Masses", "spans_in"]
