"""What happened to every page, so that a page can be asked who held it and which tokens it holds, at any step.

Events stand in the order in which they physically happened, whatever branch their steps are of: what going to another
moment did to the pool is told with the step that follows. A page that is kept for a moment of another branch has `KEPT`
for its owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from engine.wire.page_events import (
    ROOT_HASH,
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

# Before the first step of the present history: what earlier runs left in the pool.
_EARLIER = -1


class PageFacts(Struct, frozen=True):
    """One page after a step: the sequences that refer to it, oldest first, and its tokens where it is full."""

    owners: tuple[int, ...] = ()
    committed: PageCommitted | None = None


class OtherSide(Struct, frozen=True):
    """The cached page that was most like a prompt's: the token it has where the prompt has another one."""

    page_id: int
    token_id: int


class PageLog:
    """Built from records, one event at a time; only the controller writes it."""

    def __init__(self) -> None:
        self.forget_model()

    def forget_model(self) -> None:
        """Another model: its token ids mean other texts."""
        self._texts: dict[int, str] = {}
        self.forget()

    def forget(self) -> None:
        """Another pool: nothing is known of it. What the model's token ids mean is."""
        self._events: list[PageEvent] = []
        self._steps: list[int] = []
        self._of_page: dict[int, list[int]] = {}
        self._of_sequence: dict[int, list[int]] = {}
        self._children: dict[bytes, list[PageCommitted]] = {}

    def take(self, record: StepRecord) -> None:
        """Add what one step did; O(what it did)."""
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
            if isinstance(event, PageCommitted):
                self._children.setdefault(event.parent_hash, []).append(event)

    def _pages_of(self, event: PageEvent) -> Iterator[int]:
        match event:
            case PageAllocated() | PageShared() | PageFreed():
                yield event.page_id
            case PageCommitted() if event.tier is Tier.DEVICE:
                yield event.page_id
            case PageEvicted() if event.committed.tier is Tier.DEVICE:
                yield event.committed.page_id

    def restart(self) -> None:
        """Steps count from 0 again in the same pool."""
        self._steps = [_EARLIER] * len(self._steps)

    # ---- questions -----------------------------------------------------------------------------------------------

    def facts(self, page_id: int, step: int) -> PageFacts:
        """A page after a step."""
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
        """The pages that stood at a step where the sequence has `page_ids` now: one that was copied since is the one
        that it was copied from. 0 where that is not known."""
        then: dict[int, int] = {}
        for number in self._of_sequence.get(seq_id, []):
            event = self._events[number]
            if self._steps[number] > step and isinstance(event, PageCopied):
                then[event.dst_page_id] = then.get(event.src_page_id, event.src_page_id)
        found = [then.get(page_id, page_id) for page_id in page_ids]
        return [page_id if seq_id in self.facts(page_id, step).owners else 0 for page_id in found]

    def text(self, token_id: int) -> str:
        """A token's text, empty where it was never fed."""
        return self._texts.get(token_id, "")

    def other_side(self, token_ids: Sequence[int], page_size: int, position: int) -> OtherSide | None:
        """The cached page that agrees with a prompt up to `position` and differs there; None where none is known."""
        parent = ROOT_HASH
        for first in range(0, position - position % page_size, page_size):
            same = tuple(token_ids[first : first + page_size])
            found = next((entry for entry in self._children.get(parent, ()) if entry.token_ids == same), None)
            if found is None:
                return None
            parent = found.page_hash
        floor = position % page_size
        head = tuple(token_ids[position - floor : position])
        for entry in self._children.get(parent, ()):
            ids = entry.token_ids
            if ids[:floor] == head and position < len(token_ids) and ids[floor] != token_ids[position]:
                return OtherSide(entry.page_id, ids[floor])
        return None
