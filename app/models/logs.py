"""What happened to pages and rows, findable by page and by position: the page log and the eviction log.

Page events are in the order in which they happened in the pool, whichever branch their steps are on: what going to
another step did to the pool is reported with the next step. A page that is kept for a step of another branch has
`KEPT` as its owner. Only evictions by the mode of the step in question count: changing the mode may recompute K and V
and bring every row back. What the change itself evicted is in no record, so after a change a missing row may be
unexplained.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct

from engine.spec.cache import CacheSpec
from engine.wire.pages import (
    PageAllocated,
    PageCommitted,
    PageCopied,
    PageEvent,
    PageEvicted,
    PageFreed,
    PageShared,
    Tier,
)
from engine.wire.records import Eviction, Ints, StepRecord

# The step number given to events of earlier runs, whose pages are still in the pool.
_EARLIER = -1


class PageFacts(Struct, frozen=True):
    """A page after a step: the sequences that refer to it, oldest first, and its tokens if it is full and
    registered."""

    owners: tuple[int, ...] = ()
    committed: PageCommitted | None = None


class PageLog:
    """Built from the page events of the records; only the controller writes it."""

    def __init__(self) -> None:
        self.forget_model()

    def forget_model(self) -> None:
        """Clear everything, because another model's token ids stand for other texts."""
        self._texts: dict[int, str] = {}
        self.forget()

    def forget(self) -> None:
        """Clear the events, because there is another pool; the texts of token ids are kept."""
        self._events: list[PageEvent] = []
        self._steps: list[int] = []
        self._of_page: dict[int, list[int]] = {}
        self._of_sequence: dict[int, list[int]] = {}

    def take(self, record: StepRecord) -> None:
        """Add the page events of one step; O(events)."""
        for part in record.sequences:
            self._texts.update(zip(part.token_ids, part.texts, strict=True))
        for event in record.page_events:
            number = len(self._events)
            self._events.append(event)
            self._steps.append(record.step)
            for page_id in self._pages_of(event):
                self._of_page.setdefault(page_id, []).append(number)
            if isinstance(event, PageAllocated | PageShared | PageFreed | PageCopied):
                self._of_sequence.setdefault(event.seq_id, []).append(number)

    def _pages_of(self, event: PageEvent) -> Iterator[int]:
        match event:
            case PageAllocated() | PageShared() | PageFreed():
                yield event.page_id
            case PageCommitted() if event.tier is Tier.DEVICE:
                yield event.page_id
            case PageEvicted() if event.committed.tier is Tier.DEVICE:
                yield event.committed.page_id

    def restart(self) -> None:
        """Mark all events as those of an earlier run: step numbers begin at 0 again, in the same pool."""
        self._steps = [_EARLIER] * len(self._steps)

    # ---- reading -------------------------------------------------------------------------------------------------

    def facts(self, page_id: int, step: int) -> PageFacts:
        """A page's owners and tokens after a step."""
        owners: list[int] = []
        committed: PageCommitted | None = None
        for number in self._of_page.get(page_id, ()):
            if self._steps[number] > step:
                break
            event = self._events[number]
            match event:
                case PageAllocated():
                    owners = [event.seq_id]
                case PageShared():
                    owners.append(event.seq_id)
                case PageFreed() if event.seq_id in owners:
                    owners.remove(event.seq_id)
                case PageCommitted():
                    committed = event
                case PageEvicted():
                    committed = None
        return PageFacts(tuple(owners), committed)

    def pages_then(self, seq_id: int, page_ids: Iterable[int], step: int) -> list[int]:
        """The pages that the sequence had at a step in place of its present `page_ids`: for a page that was copied
        since then (copy-on-write), the page it was copied from. 0 where that is not known."""
        then: dict[int, int] = {}
        for number in self._of_sequence.get(seq_id, []):
            event = self._events[number]
            if self._steps[number] > step and isinstance(event, PageCopied):
                then[event.dst_page_id] = then.get(event.src_page_id, event.src_page_id)
        found = [then.get(page_id, page_id) for page_id in page_ids]
        return [page_id if seq_id in self.facts(page_id, step).owners else 0 for page_id in found]

    def text(self, token_id: int) -> str:
        """The text of a token id; empty if it was never computed."""
        return self._texts.get(token_id, "")


HELD = -1


class LoggedEviction(Struct, frozen=True):
    """The rows that one step evicted in one layer (or one head of it)."""

    step: int
    eviction: Eviction


class RowEviction(Struct, frozen=True):
    """The eviction of one row in one layer and head: the step, the row's score, and the lowest score that was kept by
    score."""

    step: int
    score: float
    lowest_kept: float | None
    rule: str


class EvictionLog:
    """An index of the records of a timeline. Call `follow` before a question: it reads new records, and all of them
    again if they are not a continuation of those read. Looking up an eviction touches only evictions of that
    position."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._read = 0
        self._last: StepRecord | None = None
        self._logged: list[LoggedEviction] = []
        self._ends = np.zeros((256, 3), dtype=np.int64)  # of each eviction: seq_id, its first and its last position
        self._modes: list[tuple[int, CacheSpec]] = []  # (first step in the mode, mode)
        self._begins: dict[int, int] = {}  # seq_id -> the first position that its own steps computed

    def __len__(self) -> int:
        return len(self._logged)

    def follow(self, records: Sequence[StepRecord]) -> EvictionLog:
        """Read the records that are new; O(new records)."""
        if self._read > len(records) or (self._read and records[self._read - 1] is not self._last):
            self._forget()
        for record in records[self._read :]:
            self._take(record)
        self._read, self._last = len(records), records[-1] if records else None
        return self

    def _take(self, record: StepRecord) -> None:
        if not self._modes or self._modes[-1][1] != record.cache:
            self._modes.append((record.step, record.cache))
        for part in record.sequences:
            self._begins.setdefault(part.seq_id, part.first_position)
        for eviction in record.evictions:
            if not len(eviction.positions):
                continue
            if len(self._logged) == len(self._ends):
                self._ends = np.concatenate([self._ends, np.zeros_like(self._ends)])
            self._ends[len(self._logged)] = eviction.seq_id, eviction.positions[0], eviction.positions[-1]
            self._logged.append(LoggedEviction(record.step, eviction))

    def changed_at(self, step: int) -> int | None:
        """The step at which the mode of `step` began; None if all steps up to it used one mode."""
        modes = [first for first, _ in self._modes if first <= step]
        return modes[-1] if len(modes) > 1 else None

    def is_whole(self, seq_id: int) -> bool:
        """Whether the records compute the sequence from position 0 on (a fork begins with the rows its parent had
        left)."""
        return self._begins.get(seq_id, 1) == 0

    def of(self, seq_id: int, position: int, step: int) -> list[LoggedEviction]:
        """The evictions of a position up to a step, oldest first; at most one per layer and head."""
        ends = self._ends[: len(self._logged)]
        may = (ends[:, 0] == seq_id) & (ends[:, 1] <= position) & (ends[:, 2] >= position)
        found = (self._logged[index] for index in np.flatnonzero(may))
        first = self.changed_at(step) or 0
        return [
            logged
            for logged in found
            if first <= logged.step <= step and logged.eviction.score_of(position) is not None
        ]

    def latest(self, seq_id: int, step: int) -> list[LoggedEviction]:
        """The evictions of the last step, up to `step`, that evicted anything of a sequence."""
        found: list[LoggedEviction] = []
        first = self.changed_at(step) or 0
        for logged in reversed(self._logged):
            if logged.step < first:
                break
            if logged.step > step or logged.eviction.seq_id != seq_id:
                continue
            if found and logged.step != found[0].step:
                break
            found.append(logged)
        return found[::-1]

    def eviction_of(
        self, seq_id: int, layer: int, kv_head: int, position: int, step: int, cache: CacheSpec
    ) -> RowEviction | None:
        """The eviction of a row in the given mode, up to a step; None if the history does not contain it."""
        if not self._modes or next((mode for first, mode in reversed(self._modes) if first <= step), None) != cache:
            return None
        for logged in reversed(self.of(seq_id, position, step)):
            eviction, score = logged.eviction, logged.eviction.score_of(position)
            if score is not None and eviction.layer == layer and eviction.kv_head in (None, kv_head):
                return RowEviction(logged.step, score, eviction.lowest_kept, eviction.rule)
        return None


def when_evicted(found: Sequence[LoggedEviction], layers: Sequence[int], heads: int) -> Ints:
    """`[L, H_kv]`: the step that evicted the position from that head, HELD if it is still there."""
    steps = np.full((len(layers), heads), HELD, dtype=np.int64)
    for logged in found:
        if logged.eviction.layer in layers:
            row = list(layers).index(logged.eviction.layer)
            steps[row, slice(None) if logged.eviction.kv_head is None else logged.eviction.kv_head] = logged.step
    return steps


def logged_in(found: Sequence[LoggedEviction], layer: int, kv_head: int) -> LoggedEviction | None:
    """The eviction in that layer and head; None if there is none."""
    mine = (logged for logged in found if logged.eviction.layer == layer)
    return next((logged for logged in mine if logged.eviction.kv_head in (None, kv_head)), None)
