"""The history of every page: which sequences held it and which tokens it contained, after any step.

Events are in the order in which they happened in the pool, whichever branch their steps are on: what going to another
step did to the pool is reported with the next step. A page that is kept for a step of another branch has `KEPT` as its
owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

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
from engine.wire.records import StepRecord

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
