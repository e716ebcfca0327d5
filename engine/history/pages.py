"""The state of every page of a pool, kept up to date from the events of each step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import structs

from engine.wire.pages import (
    BLOCK_PAGES,
    KEPT,
    NO_OWNER,
    NULL_PAGE_ID,
    PAGE_DTYPE,
    PageAllocated,
    PageCell,
    PageCommitted,
    PageEvent,
    PageEvicted,
    PageFreed,
    PageMap,
    PageMoved,
    PageShared,
    PoolStep,
    Tier,
)


class PageMaps:
    """The present state of every pool. The reader of records must call `fold` for each record, in order."""

    def __init__(self) -> None:
        self._trackers: dict[int, PageTracker] = {}

    def fold(self, step: int, events: Sequence[PageEvent], pools: Sequence[PoolStep]) -> tuple[PageMap, ...]:
        """Apply a step's events and return the state of all pools after it, in time proportional to the changes."""
        known, self._trackers = self._trackers, {}
        maps, start = [], 0
        for pool in pools:
            tracker = known.get(pool.pool) or PageTracker(pool.num_pages, pool.page_size)
            self._trackers[pool.pool] = tracker
            tracker.apply(events[start : start + pool.num_events], step)
            start += pool.num_events
            for page_id, fill in pool.fills:
                tracker.set_fill(page_id, fill)
            maps.append(PageMap(**structs.asdict(pool), blocks=tracker.blocks(), num_kept_pages=tracker.num_kept_pages))
        return tuple(maps)


class PageTracker:
    """Keeps the cells of one pool up to date. Blocks that `blocks()` has returned are never changed again."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages, self.page_size = num_pages, page_size
        self._blocks: list[npt.NDArray[np.void]] = []
        for start in range(0, num_pages, BLOCK_PAGES):
            block = np.zeros(min(BLOCK_PAGES, num_pages - start), PAGE_DTYPE)
            block["owner"] = NO_OWNER
            self._blocks.append(block)
        self._blocks[0]["state"][NULL_PAGE_ID] = PageCell.NULL
        self._writable: set[int] = set(range(len(self._blocks)))
        self.num_kept_pages = 0
        self._sharers: dict[int, list[int]] = {}  # the sequences that reference a shared page, the latest last
        self._host_hashes: set[bytes] = set()
        self._page_of_hash: dict[bytes, int] = {}

    def _cell(self, page_id: int) -> np.void:
        """The writable cell of a page; its block is copied first if it has been handed out."""
        number = page_id // BLOCK_PAGES
        if number not in self._writable:
            self._blocks[number] = self._blocks[number].copy()
            self._writable.add(number)
        return self._blocks[number][page_id % BLOCK_PAGES]  # type: ignore[no-any-return]

    def apply(self, events: Iterable[PageEvent], step: int) -> None:
        """Apply page events of step number `step`, in order."""
        for event in events:
            match event:
                case PageAllocated():
                    self._sharers.pop(event.page_id, None)
                    self._set_referenced(event.page_id, 1, int(event.seq_id == KEPT), event.seq_id, step)
                    self._cell(event.page_id)["fill"] = self.page_size
                case PageShared():
                    self._shared(event, step)
                case PageFreed():
                    self._freed(event, step)
                case PageCommitted() if event.tier is Tier.DEVICE:
                    self._page_of_hash[event.page_hash] = event.page_id
                    self._cell(event.page_id)["on_host"] = event.page_hash in self._host_hashes
                case PageCommitted():
                    self._on_host(event.page_hash, True)
                case PageEvicted():
                    self._evicted(event)
                case PageMoved():
                    self._on_host(event.page_hash, True)

    def set_fill(self, page_id: int, fill: int) -> None:
        """Set the number of tokens in the last page of a sequence."""
        if int(self._blocks[page_id // BLOCK_PAGES][page_id % BLOCK_PAGES]["fill"]) != fill:
            self._cell(page_id)["fill"] = fill

    def blocks(self) -> tuple[npt.NDArray[np.void], ...]:
        """All blocks, read-only from now on; later changes copy the block first."""
        for number in self._writable:
            self._blocks[number].flags.writeable = False
        self._writable.clear()
        return tuple(self._blocks)

    def _set(self, page_id: int, state: PageCell, ref_count: int, owner: int, step: int, num_kept: int = 0) -> None:
        cell = self._cell(page_id)
        self.num_kept_pages += (state == PageCell.KEPT) - (int(cell["state"]) == PageCell.KEPT)
        cell["state"], cell["ref_count"], cell["owner"], cell["step"] = state, ref_count, owner, step
        cell["num_kept"] = num_kept

    def _set_referenced(self, page_id: int, ref_count: int, num_kept: int, owner: int, step: int) -> None:
        """Mark a page as referenced `ref_count` times, `num_kept` of them by kept checkpoints."""
        if num_kept == ref_count:
            self._set(page_id, PageCell.KEPT, ref_count, KEPT, step, num_kept)
        else:
            state = PageCell.USED if ref_count == 1 else PageCell.SHARED
            self._set(page_id, state, ref_count, owner, step, num_kept)

    def _shared(self, event: PageShared, step: int) -> None:
        cell, is_kept = self._cell(event.page_id), event.seq_id == KEPT
        owner = int(cell["owner"])
        sharers = self._sharers.setdefault(event.page_id, [owner] if owner not in (NO_OWNER, KEPT) else [])
        if not is_kept:
            sharers.append(owner := event.seq_id)
        self._set_referenced(event.page_id, event.ref_count, int(cell["num_kept"]) + is_kept, owner, step)

    def _freed(self, event: PageFreed, step: int) -> None:
        sharers = self._sharers.get(event.page_id, [])
        if event.seq_id in sharers:
            sharers.remove(event.seq_id)
        if event.ref_count:
            cell = self._cell(event.page_id)
            num_kept = max(0, int(cell["num_kept"]) - (event.seq_id == KEPT))
            owner = sharers[-1] if sharers else int(cell["owner"])
            self._set_referenced(event.page_id, event.ref_count, num_kept, owner, step)
            return
        self._sharers.pop(event.page_id, None)
        self._set(event.page_id, PageCell.CACHED if event.is_findable else PageCell.FREE, 0, NO_OWNER, step)
        if not event.is_findable:
            self._cell(event.page_id)["fill"] = 0

    def _evicted(self, event: PageEvicted) -> None:
        if event.committed.tier is Tier.HOST:
            self._on_host(event.committed.page_hash, False)
            return
        self._page_of_hash.pop(event.committed.page_hash, None)
        cell = self._cell(event.committed.page_id)
        cell["on_host"] = False
        if cell["ref_count"] == 0:
            cell["state"], cell["fill"] = PageCell.FREE, 0

    def _on_host(self, page_hash: bytes, there: bool) -> None:
        (self._host_hashes.add if there else self._host_hashes.discard)(page_hash)
        page_id = self._page_of_hash.get(page_hash)
        if page_id is not None:
            self._cell(page_id)["on_host"] = there
