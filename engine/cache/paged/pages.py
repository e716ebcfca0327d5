"""The bookkeeping of single pages of a pool: reference counts, the order of reuse, and the tokens that each cached page
holds. No K and V.

A page is *free* (no references, not findable), *used* (referenced by one sequence), *shared* (by several) or *cached*
(no references, but findable by its tokens). Every operation costs O(1) per page that it touches, whatever the size of
the pool, and appends what it did to `events`. An operation that cannot be done raises before it changes anything.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from engine.cache.paged.free_list import FreeList
from engine.cache.paged.prefix import PrefixIndex
from engine.errors import InputError
from engine.wire.page_events import (
    NULL_PAGE_ID,
    EvictReason,
    PageAllocated,
    PageCommitted,
    PageEvent,
    PageEvicted,
    PageFreed,
    PageShared,
)


class PoolExhausted(RuntimeError):
    """Too few pages are free or cached. Nothing was changed."""

    def __init__(self, num_needed_pages: int, num_available_pages: int) -> None:
        super().__init__(f"{num_needed_pages} pages are needed, but only {num_available_pages} can be taken")
        self.num_needed_pages = num_needed_pages
        self.num_available_pages = num_available_pages


class PoolMisuse(RuntimeError):
    """The caller broke a rule of the pool: freed a free page, shared a page that nobody can find, mixed up tables."""


class PoolCorrupted(RuntimeError):
    """`check()` found the bookkeeping at odds with itself: a defect of the program."""


MAX_PAGE_SIZE = 1024
MAX_NUM_PAGES = 2**31 - 2  # page ids live in arrays of C ints

_ROOM = EvictReason.ROOM  # a constant, because Python 3.11 takes ten times as long to read an enumeration's member


class PageState(StrEnum):
    """The state of a page, as defined at the top of this module."""

    NULL = "null"
    FREE = "free"
    CACHED = "cached"
    USED = "used"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """Pages by state, without the null page."""

    num_free: int
    num_cached: int
    num_used: int
    num_shared: int


class Pages:
    """Bookkeeping of `num_pages` pages of `page_size` tokens; page 0 is the null page.

    `events` is appended to and never read: whoever owns the list drains it.
    """

    __slots__ = (
        "_free",
        "_index",
        "_num_cached",
        "_num_shared",
        "_refs",
        "events",
        "num_pages",
        "num_share_changes",
        "page_size",
    )

    def __init__(self, num_pages: int, page_size: int, events: list[PageEvent] | None = None) -> None:
        """Raises InputError for a page size that is no power of two from 1 to 1,024 and for fewer than 2 pages."""
        check_page_size(page_size)
        if not 2 <= num_pages <= MAX_NUM_PAGES:
            raise InputError(
                f"A pool of {num_pages} pages is impossible: give 2 to {MAX_NUM_PAGES}, one of which is the null page."
            )
        self.num_pages = num_pages
        self.page_size = page_size
        self.events: list[PageEvent] = [] if events is None else events
        self._free = FreeList(NULL_PAGE_ID + 1, num_pages)
        self._refs = array("i", [0]) * num_pages
        self._index = PrefixIndex(num_pages)
        self._num_cached = 0
        self._num_shared = 0
        self.num_share_changes = 0  # how often a reference was added to or removed from a page with another reference

    # --- looking -----------------------------------------------------------------------------------------------

    @property
    def num_available_pages(self) -> int:
        """Pages that can be taken now: free and cached ones."""
        return len(self._free)

    def are_next_free(self, count: int) -> bool:
        """Whether the next `count` pages to be taken are all free, so that taking them evicts no cached page."""
        upcoming = list(islice(self._free, count))
        return len(upcoming) == count and all(self._index.entry(page_id) is None for page_id in upcoming)

    def counts(self) -> PoolCounts:
        """Pages by state. O(1)."""
        num_referenced = self.num_pages - 1 - len(self._free)
        return PoolCounts(
            num_free=len(self._free) - self._num_cached,
            num_cached=self._num_cached,
            num_used=num_referenced - self._num_shared,
            num_shared=self._num_shared,
        )

    def ref_count(self, page_id: int) -> int:
        """How many tables refer to the page; 0 for the null page."""
        return self._refs[page_id]

    def entry(self, page_id: int) -> PageCommitted | None:
        """What a findable page holds (hash, parent, tokens); None for a page that cannot be found."""
        return self._index.entry(page_id)

    def state(self, page_id: int) -> PageState:
        """The state of a page. O(1)."""
        if page_id == NULL_PAGE_ID:
            return PageState.NULL
        ref_count = self._refs[page_id]
        if ref_count:
            return PageState.USED if ref_count == 1 else PageState.SHARED
        return PageState.FREE if self._index.entry(page_id) is None else PageState.CACHED

    # --- page by page ------------------------------------------------------------------------------------------

    def share(self, page_ids: Sequence[int], seq_id: int) -> None:
        """Add a reference to each page; a cached page leaves the free list. Null pages are skipped.

        Raises PoolMisuse for a page that is neither referenced nor findable: its contents mean nothing.
        """
        for page_id in page_ids:
            if page_id and not self._refs[page_id] and self._index.entry(page_id) is None:
                raise PoolMisuse(f"Page {page_id} is free, so sequence {seq_id} cannot share it.")
        for page_id in page_ids:
            if page_id:
                self._share_all([page_id], seq_id)

    def free(self, page_ids: Sequence[int], seq_id: int) -> None:
        """Drop one reference to each page, the last page first, so that the first pages of a prefix are reused last.

        Null pages are skipped. Raises PoolMisuse for a page without a reference and for one named twice.
        """
        held = [page_id for page_id in page_ids if page_id]
        if len(set(held)) != len(held):
            raise PoolMisuse(f"Sequence {seq_id} frees a page twice: {held}.")
        for page_id in held:
            if not self._refs[page_id]:
                raise PoolMisuse(f"Page {page_id} is not in use, so sequence {seq_id} cannot free it.")
        self._free_all(held, seq_id)

    def evict(self, page_ids: Iterable[int]) -> int:
        """Remove these pages from the prefix cache; used pages stay with their sequences. Returns how many were
        findable.

        Whoever edits K or V of a committed page evicts it and every later page of its sequence.
        """
        findable = [page_id for page_id in page_ids if self._index.entry(page_id) is not None]
        for page_id in findable:
            self._forget(page_id, EvictReason.REQUEST)
        return len(findable)

    # --- the single steps --------------------------------------------------------------------------------------

    def _require(self, num_pages: int) -> None:
        if num_pages > len(self._free):
            raise PoolExhausted(num_pages, len(self._free))

    def _take(self, seq_id: int) -> int:
        page_id = self._free.head()
        if self._index.entry(page_id) is not None:
            self._forget(page_id, _ROOM)
        taken = PageAllocated(seq_id, page_id)
        self._free.pop()
        self._refs[page_id] = 1
        self.events.append(taken)
        return page_id

    def _undo_take(self, page_id: int) -> None:
        """Undo the latest `_take`. Raises PoolMisuse, having changed nothing, if another event has happened since, or
        if taking the page evicted it from the prefix cache."""
        last, before = self.events[-1:], self.events[-2:-1]
        is_last = len(last) == 1 and isinstance(last[0], PageAllocated) and last[0].page_id == page_id
        was_findable = bool(before) and isinstance(before[0], PageEvicted) and before[0].committed.page_id == page_id
        if not is_last or was_findable or self._refs[page_id] != 1:
            raise PoolMisuse(f"Page {page_id} cannot be put back where it was taken from.")
        self.events.pop()
        self._refs[page_id] = 0
        self._free.undo_pop(page_id)

    def _share_all(self, page_ids: Sequence[int], seq_id: int) -> None:
        """Add a reference to each of these pages, all of them different; an error changes nothing."""
        refs, revived, num_shared, events = self._refs, [], 0, []
        for page_id in page_ids:
            ref_count = refs[page_id] + 1
            if ref_count == 1:
                revived.append(page_id)
            num_shared += ref_count == 2
            events.append(PageShared(seq_id, page_id, ref_count))
        self._free.remove(revived)  # the last call that can fail
        for event in events:
            refs[event.page_id] = event.ref_count
        self._num_cached -= len(revived)
        self._num_shared += num_shared
        self.num_share_changes += len(events) - len(revived)
        self.events += events

    def _free_all(self, page_ids: Sequence[int], seq_id: int) -> None:
        """Drop a reference to each of these pages, all of them different, the last first; an error changes nothing."""
        refs, entry_of, unused, num_cached, num_unshared, events = self._refs, self._index.entry, [], 0, 0, []
        for page_id in reversed(page_ids):
            ref_count, is_findable = refs[page_id] - 1, entry_of(page_id) is not None
            if ref_count == 0:
                unused.append(page_id)
                num_cached += is_findable
            num_unshared += ref_count == 1
            events.append(PageFreed(seq_id, page_id, ref_count, is_findable))
        self._free.push(unused)  # the last call that can fail
        for event in events:
            refs[event.page_id] = event.ref_count
        self._num_cached += num_cached
        self._num_shared -= num_unshared
        self.num_share_changes += len(events) - len(unused)
        self.events += events

    def _forget(self, page_id: int, reason: EvictReason) -> None:
        entry = self._index.remove(page_id)
        if not self._refs[page_id]:
            self._num_cached -= 1
        self.events.append(PageEvicted(entry, reason))

    def faults(self) -> list[str]:
        """What is inconsistent among the pages, in words; nothing when all is sound. O(pages)."""
        return [*self._free.faults(), *self._index.faults(), *self._count_faults()]

    def _count_faults(self) -> Iterable[str]:
        num_cached = num_shared = 0
        for page_id in range(NULL_PAGE_ID + 1, self.num_pages):
            ref_count = self._refs[page_id]
            if (ref_count == 0) != (page_id in self._free) or ref_count < 0:
                yield f"page {page_id} has {ref_count} references, and in the free list: {page_id in self._free}"
            num_shared += ref_count > 1
            num_cached += ref_count == 0 and self._index.entry(page_id) is not None
        if (num_cached, num_shared) != (self._num_cached, self._num_shared):
            yield f"{num_cached} cached and {num_shared} shared pages are counted as {self.counts()}"
        if self._refs[NULL_PAGE_ID] or NULL_PAGE_ID in self._free or self._index.entry(NULL_PAGE_ID) is not None:
            yield "the null page is referenced, free or findable"


def check_page_size(page_size: int) -> None:
    """Raises InputError unless the page size is a power of two from 1 to 1,024."""
    if not 1 <= page_size <= MAX_PAGE_SIZE or page_size & (page_size - 1):
        raise InputError(f"A page of {page_size} tokens is impossible: give a power of two from 1 to {MAX_PAGE_SIZE}.")
