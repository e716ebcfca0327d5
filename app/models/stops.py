"""The conditions that halt a run, and the one that past steps are searched for, with the steps at which each held."""

from __future__ import annotations

from collections.abc import Iterable
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

PIECE_S = 0.006  # of searching, between which the window lives
PLACES_AT_ONCE = 256


class Stops(QObject):
    """`stops` are written by the controller alone, which tells the engine; the `query` by the panel. `changed`: another
    stop, query or hit; `found`: more is known of the past. `attention_wanted(places)`: the engine has to be asked."""

    changed = Signal()
    found = Signal()
    attention_wanted = Signal(object)

    def __init__(self, timeline: Timeline, comparison: Comparison) -> None:
        super().__init__()
        self._timeline, self._comparison = timeline, comparison
        self.stops: tuple[Stop, ...] = ()
        self.query = ""
        self.hits: dict[int, StopHit] = {}  # by step, what a run halted at
        self._masses: dict[Place, Attention | None] = {}
        self._asked: list[Place] = []  # of the engine, on their way
        self._searches: dict[str, Search] = {}
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self._go_on)
        timeline.legible.connect(self._go_on_soon)
        timeline.reset.connect(self._begin_anew)
        timeline.filled.connect(self._begin_anew)
        comparison.changed.connect(self._on_compared)

    # ---- what is set ---------------------------------------------------------------------------------------------

    def set(self, stops: Iterable[Stop]) -> None:
        """Other stops than before."""
        self.stops = tuple(stops)
        self._search_all()
        self.changed.emit()

    def with_added(self, text: str) -> tuple[Stop, ...]:
        """The stops with one more; raises `InputError` where it cannot be read or there are too many."""
        parsed(text)
        if len(self.stops) >= MAX_STOPS:
            raise InputError(f"There are {MAX_STOPS} stops already: delete one first.")
        return (*self.stops, Stop(max((stop.id for stop in self.stops), default=0) + 1, text.strip()))

    def search(self, query: str) -> None:
        """Find the steps at which a condition held; the empty text ends it. Raises `InputError` where it cannot be
        read, and the query before stays."""
        if query.strip():
            parsed(query)
        self.query = query.strip()
        self._search_all()
        self.changed.emit()

    def take_hit(self, hit: StopHit) -> None:
        """A run halted there."""
        self.hits[hit.step] = hit
        self.changed.emit()

    # ---- what was found ------------------------------------------------------------------------------------------

    def of(self, text: str) -> Search | None:
        """What is known of a condition that is a stop or the query."""
        return self._searches.get(text)

    @property
    def queried(self) -> Search | None:
        """What is known of the query."""
        return self._searches.get(self.query) if self.query else None

    def next_match(self, step: int | None, direction: int) -> int | None:
        """The step nearest to one (None: the live one) in a direction, +1 or -1, at which the query held; beyond the
        last the first again. None where there is none."""
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
        """The path is another one, or records of it are."""
        self._searches = {text: self._new(text) for text in self._searches}
        if not len(self._timeline) and not len(self._timeline.history):  # another history, not the start of this one
            self.hits.clear()
            self._masses.clear()
            self._asked.clear()  # what comes still is of the steps that were
        self._go_on_soon()
        self.changed.emit()

    def _on_compared(self) -> None:
        if any("differs" in text for text in self._searches):
            self._begin_anew()

    def _go_on_soon(self) -> None:
        if any(not search.is_done for search in self._searches.values()) and not self._timer.isActive():
            self._timer.start(0)

    def _go_on(self) -> None:
        """Look at some more records; one whose attention is asked of the engine waits for the answer."""
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
        """The engine's answer; None where it cannot say: what is not in it is not known."""
        places, self._asked = self._asked, []
        known = {(m.step, m.seq_id, m.span): Attention(m.mean, m.peak) for m in answer.masses} if answer else {}
        self._masses.update({place: known.get(place) for place in places})
        self._go_on_soon()


def spans_in(places: Iterable[Place]) -> tuple[TokenSpan, ...]:
    """The spans of some places, each once."""
    return tuple(dict.fromkeys(span for _, _, span in places))


__all__ = ["Masses", "Stops", "spans_in"]
