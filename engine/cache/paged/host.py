"""The host tier: a second-level prefix cache in host memory. This is its bookkeeping; the caller copies K and V.

The rules are those of MAX's local connector: every page that becomes findable on the device is written through once;
where the cached pages of a prompt's prefix end on the device, the following pages are looked up on the host until the
first miss; the least recently used host page is evicted to make room. Running sequences are never swapped out.

A copy takes time and can fail, so each direction has three calls: `begin_*` pins the host page, `finish_*` makes the
copy known with its duration, `abandon_*` undoes a copy that failed.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.cache.paged.pool import MAX_NUM_PAGES, PoolCorrupted, PoolMisuse
from engine.cache.paged.prefix import PrefixIndex, PrefixMatch
from engine.errors import InputError
from engine.wire.pages import (
    EvictReason,
    MoveDirection,
    PageCommitted,
    PageEvent,
    PageEvicted,
    PageMoved,
    Tier,
)


@dataclass(frozen=True, slots=True)
class HostStore:
    """A copy from a device page to a host page that the caller has to do."""

    committed: PageCommitted
    host_page_id: int


class HostIndex:
    """Bookkeeping of `num_pages` host pages (ids from 0) of `bytes_per_page` bytes, K and V of all layers together.

    Give it the pool's own `events` list, so that the events of both are in one order.
    """

    __slots__ = ("_free", "_index", "_pins", "bytes_per_page", "events", "num_pages", "page_size")

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        bytes_per_page: int,
        *,
        events: list[PageEvent] | None = None,
    ) -> None:
        """Raises InputError for impossible sizes."""
        if bytes_per_page < 1:
            raise InputError(f"A page of {bytes_per_page} bytes is impossible.")
        if not 1 <= num_pages <= MAX_NUM_PAGES:
            raise InputError(f"A host tier of {num_pages} pages is impossible: give 1 to {MAX_NUM_PAGES}.")
        self.num_pages = num_pages
        self.page_size = page_size
        self.bytes_per_page = bytes_per_page
        self.events: list[PageEvent] = [] if events is None else events
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_pages))  # the next to be taken first
        self._pins = array("i", [0]) * num_pages
        self._index = PrefixIndex(num_pages)

    @property
    def num_stored_pages(self) -> int:
        """Number of findable host pages."""
        return self._index.num_pages()

    def entry(self, host_page_id: int) -> PageCommitted | None:
        """What a host page holds; None for an empty one."""
        return self._index.entry(host_page_id)

    # --- device to host ----------------------------------------------------------------------------------------

    def begin_store(self, committed: PageCommitted) -> HostStore | None:
        """Take a host page for a page that became findable on the device, evicting the least recently used one.

        None means that there is nothing to copy: the host has these tokens already, has other tokens under the same
        hash, or is copying all of its pages.
        """
        if committed.tier is not Tier.DEVICE:
            raise PoolMisuse(f"Page {committed.page_id} lies on the host already.")
        if self._index.first(committed.page_hash) is not None or not self._free:
            return None
        host_page_id = next(iter(self._free))
        if self._index.entry(host_page_id) is not None:
            self.events.append(PageEvicted(self._index.remove(host_page_id), EvictReason.ROOM))
        store = HostStore(committed, host_page_id)
        del self._free[host_page_id]
        self._pins[host_page_id] = 1
        return store

    def finish_store(self, store: HostStore, duration_ms: float) -> None:
        """The copy is done: the host page is findable from now on."""
        self._unpin(store.host_page_id)
        device = store.committed
        self._move(MoveDirection.TO_HOST, device.page_id, store.host_page_id, device.page_hash, duration_ms)
        if self._index.first(device.page_hash) is not None:
            return  # the same tokens were copied twice at the same time: the first copy is findable, this one is freed
        entry = PageCommitted(store.host_page_id, device.page_hash, device.parent_hash, device.token_bytes, Tier.HOST)
        self._index.add(entry)
        self.events.append(entry)

    def abandon_store(self, store: HostStore) -> None:
        """The copy failed: the host page is empty again."""
        self._unpin(store.host_page_id)

    # --- host to device ----------------------------------------------------------------------------------------

    def match_after(self, match: PrefixMatch, max_pages: int | None = None) -> tuple[PageCommitted, ...]:
        """The host pages that continue a match on the device, in order until the first miss; changes nothing.

        `max_pages` limits them to what the device has room for. The last token is never among them.
        """
        stop = match.num_hashable_pages
        if max_pages is not None:
            stop = min(stop, len(match.page_ids) + max_pages)
        pages = range(len(match.page_ids), stop)
        return tuple(self._index.follow(match.last_hash, match.token_bytes, pages, 4 * self.page_size))

    def begin_load(self, entries: Sequence[PageCommitted]) -> None:
        """Keep host pages from being evicted while they are copied. Raises PoolMisuse when one is out of date."""
        for entry in entries:
            if self._index.entry(entry.page_id) is not entry:
                raise PoolMisuse(f"Host page {entry.page_id} changed since it was matched.")
        for entry in entries:
            self._free.pop(entry.page_id, None)
            self._pins[entry.page_id] += 1

    def finish_load(self, entries: Sequence[PageCommitted], page_ids: Sequence[int], duration_ms: float) -> None:
        """Note that the copies to the device pages `page_ids` are done; each page is charged its share of the time.

        The host pages become the most recently used ones; of these, the first of the prefix will be evicted last.
        """
        if len(entries) != len(page_ids):
            raise PoolMisuse(f"{len(entries)} host pages cannot have gone to {len(page_ids)} device pages.")
        for entry, page_id in zip(entries, page_ids, strict=True):
            share_ms = duration_ms / len(entries)
            self._move(MoveDirection.TO_DEVICE, page_id, entry.page_id, entry.page_hash, share_ms)
        self.abandon_load(entries)

    def abandon_load(self, entries: Sequence[PageCommitted]) -> None:
        """Unpin host pages after a copy; they stay findable."""
        for entry in reversed(entries):
            self._unpin(entry.page_id)

    # --- forgetting --------------------------------------------------------------------------------------------

    def evict(self, host_page_ids: Iterable[int]) -> int:
        """Remove these host pages from the prefix cache; returns how many were findable."""
        findable = [page_id for page_id in host_page_ids if self._index.entry(page_id) is not None]
        for page_id in findable:
            self.events.append(PageEvicted(self._index.remove(page_id), EvictReason.REQUEST))
        return len(findable)

    def check(self) -> None:
        """Verify every invariant and raise PoolCorrupted with all that is wrong. O(pages)."""
        found = self._index.faults()
        for page_id, num_pins in enumerate(self._pins):
            if (num_pins == 0) != (page_id in self._free) or num_pins < 0:
                found.append(f"host page {page_id} has {num_pins} pins, and in the free list: {page_id in self._free}")
        if found:
            raise PoolCorrupted("; ".join(found))

    def _unpin(self, host_page_id: int) -> None:
        if self._pins[host_page_id] == 0:
            raise PoolMisuse(f"Host page {host_page_id} is not being copied.")
        if self._pins[host_page_id] == 1:
            self._free[host_page_id] = None
        self._pins[host_page_id] -= 1

    def _move(
        self, direction: MoveDirection, page_id: int, host_page_id: int, page_hash: bytes, duration_ms: float
    ) -> None:
        self.events.append(PageMoved(direction, page_id, host_page_id, page_hash, self.bytes_per_page, duration_ms))


def num_host_pages(host_gib: float, bytes_per_page: int) -> int:
    """How many pages a host tier of `host_gib` GiB holds (MAX's rule: floor(GiB * 1024^3 / bytes per page)).

    Raises InputError for a size that is no positive number and for one that holds no page.
    """
    if not (math.isfinite(host_gib) and host_gib > 0):
        raise InputError(f"A host tier of {host_gib} GiB is impossible: give a positive number.")
    if bytes_per_page < 1:
        raise InputError(f"A page of {bytes_per_page} bytes is impossible.")
    num_pages = int(host_gib * 1024**3) // bytes_per_page
    if num_pages == 0:
        raise InputError(
            f"A host tier of {host_gib} GiB holds no page: one page takes {bytes_per_page} bytes. "
            f"Give at least {bytes_per_page / 1024**3:.3g} GiB."
        )
    return num_pages
