"""The conditions that halt a run, and the query that past steps are searched for, with the steps at which each held."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import perf_counter

from PySide6.QtCore import QObject, QTimer, Signal

from app.models.comparison import Comparison
from app.models.search import Masses, Place, Search
from app.models.timeline import Timeline
from engine.errors import InputError
from engine.spec.condition import TokenSpan
from engine.spec.stops import MAX_STOPS, Stop, parsed
from engine.wire.condition_values import Attention
from engine.wire.stopping import AttentionMeasured, StopHit

PIECE_S = 0.006  # time of one piece of searching; between pieces the window handles its events
PLACES_AT_ONCE = 256


class Stops(QObject):
    """`stops` are written by the controller alone, which sends them to the engine; `query` by the panel. Signals:
    `changed()`, a stop, the query or a hit; `found()`, the search has progressed; `attention_wanted(places)`, to be
    asked of the engine."""

    changed = Signal()
    found = Signal()
    attention_wanted = Signal(object)

    def __init__(self, timeline: Timeline, comparison: Comparison) -> None:
        super().__init__()
        self._timeline, self._comparison = timeline, comparison
        self.stops: tuple[Stop, ...] = ()
        self.query = ""
        self.hits: dict[int, StopHit] = {}  # by step: the condition at which a run was halted there
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

    def set(self, stops: Iterable[Stop]) -> None:
        """Replace the stops."""
        self.stops = tuple(stops)
        self._search_all()
        self.changed.emit()

    def with_added(self, text: str) -> tuple[Stop, ...]:
        """The stops with one more. Raises `InputError` if the condition cannot be parsed or there are too many
        stops."""
        parsed(text)
        if len(self.stops) >= MAX_STOPS:
            raise InputError(f"There are {MAX_STOPS} breakpoints already: delete one first.")
        return (*self.stops, Stop(max((stop.id for stop in self.stops), default=0) + 1, text.strip()))

    def search(self, query: str) -> None:
        """Search for the steps at which a condition held; the empty text ends the search. Raises `InputError` if it
        cannot be parsed; the query then stays as it was."""
        if query.strip():
            parsed(query)
        self.query = query.strip()
        self._search_all()
        self.changed.emit()

    def take_hit(self, hit: StopHit) -> None:
        """Note that a run was halted there."""
        self.hits[hit.step] = hit
        self.changed.emit()

    # ---- what was found ------------------------------------------------------------------------------------------

    def of(self, text: str) -> Search | None:
        """The search for the condition of a stop or of the query; None if there is none."""
        return self._searches.get(text)

    @property
    def queried(self) -> Search | None:
        """The search for the query; None without a query."""
        return self._searches.get(self.query) if self.query else None

    @property
    def halting(self) -> Iterator[tuple[str, Search]]:
        """The enabled stops with the steps at which they held: a run that comes there halts."""
        for stop in self.stops:
            if stop.is_enabled and (search := self._searches.get(stop.text)) is not None:
                yield stop.text, search

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
        wanted = {stop.text for stop in self.stops} | ({self.query} if self.query else set())
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


__all__ = ["Masses", "Stops", "spans_in"]
