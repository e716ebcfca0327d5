"""The picture of a pool after events, page by page: state, references, fill, owner, step, and a copy on the host."""

from __future__ import annotations

import pytest

from engine.history.pages import PageTracker
from engine.wire.pages import (
    BLOCK_PAGES,
    KEPT,
    NO_OWNER,
    ROOT_HASH,
    EvictReason,
    MoveDirection,
    PageAllocated,
    PageCell,
    PageCommitted,
    PageEvent,
    PageEvicted,
    PageFreed,
    PageMoved,
    PageShared,
    Tier,
)

FREE, USED, SHARED, CACHED, NULL = PageCell.FREE, PageCell.USED, PageCell.SHARED, PageCell.CACHED, PageCell.NULL
HASH = b"7" * 16
ON_DEVICE = PageCommitted(7, HASH, ROOT_HASH, b"", Tier.DEVICE)
ON_HOST = PageCommitted(3, HASH, ROOT_HASH, b"", Tier.HOST)
MOVED = PageMoved(MoveDirection.TO_HOST, 7, 3, HASH, 64, 0.1)
TAKEN = PageAllocated(0, 7)


def told(tracker: PageTracker, page_id: int = 7) -> tuple[int, ...]:
    cell = tracker.blocks()[page_id // BLOCK_PAGES][page_id % BLOCK_PAGES]
    return tuple(int(cell[name]) for name in ("state", "ref_count", "fill", "owner", "step", "on_host"))


@pytest.mark.parametrize(
    ("events", "cell"),
    [
        ([TAKEN], (USED, 1, 4, 0, 9, 0)),
        ([TAKEN, PageShared(2, 7, 2)], (SHARED, 2, 4, 2, 9, 0)),
        ([TAKEN, PageShared(2, 7, 2), PageFreed(0, 7, 1, True)], (USED, 1, 4, 2, 9, 0)),
        ([TAKEN, PageShared(2, 7, 3), PageFreed(0, 7, 2, True)], (SHARED, 2, 4, 2, 9, 0)),
        ([TAKEN, PageShared(2, 7, 2), PageFreed(2, 7, 1, True)], (USED, 1, 4, 0, 9, 0)),
        ([TAKEN, PageShared(2, 7, 2), PageShared(5, 7, 3), PageFreed(5, 7, 2, True)], (SHARED, 2, 4, 2, 9, 0)),
        ([TAKEN, PageShared(2, 7, 2), PageShared(KEPT, 7, 3), PageFreed(2, 7, 2, True)], (SHARED, 2, 4, 0, 9, 0)),
        (
            [TAKEN, PageShared(2, 7, 2), PageFreed(0, 7, 1, True), PageFreed(2, 7, 0, False), TAKEN],
            (USED, 1, 4, 0, 9, 0),
        ),
        ([TAKEN, PageFreed(0, 7, 0, True)], (CACHED, 0, 4, NO_OWNER, 9, 0)),
        ([TAKEN, PageFreed(0, 7, 0, True), PageShared(5, 7, 1)], (USED, 1, 4, 5, 9, 0)),
        ([TAKEN, PageFreed(0, 7, 0, False)], (FREE, 0, 0, NO_OWNER, 9, 0)),
        ([TAKEN, ON_DEVICE, MOVED], (USED, 1, 4, 0, 9, 1)),
        ([TAKEN, ON_HOST, ON_DEVICE], (USED, 1, 4, 0, 9, 1)),
        ([TAKEN, ON_DEVICE, ON_HOST, PageEvicted(ON_HOST, EvictReason.ROOM)], (USED, 1, 4, 0, 9, 0)),
        ([TAKEN, ON_DEVICE, ON_HOST, PageEvicted(ON_DEVICE, EvictReason.REQUEST)], (USED, 1, 4, 0, 9, 0)),
        (
            [TAKEN, ON_DEVICE, ON_HOST, PageFreed(0, 7, 0, True), PageEvicted(ON_DEVICE, EvictReason.ROOM)],
            (FREE, 0, 0, NO_OWNER, 9, 0),
        ),
    ],
)
def test_a_page_after_what_happened_to_it(events: list[PageEvent], cell: tuple[int, ...]) -> None:
    tracker = PageTracker(12, 4)
    tracker.apply(events, 9)
    assert told(tracker) == cell
    assert told(tracker, 8) == (FREE, 0, 0, NO_OWNER, 0, 0)
    assert told(tracker, 0)[0] == NULL


def test_what_was_handed_out_never_changes_and_what_did_not_change_is_not_copied() -> None:
    tracker = PageTracker(2 * BLOCK_PAGES + 5, 4)
    tracker.apply([TAKEN], 1)
    before = tracker.blocks()
    tracker.apply([PageAllocated(1, BLOCK_PAGES + 2)], 2)
    tracker.set_fill(7, 4)  # which it has
    after = tracker.blocks()
    assert [one is other for one, other in zip(before, after, strict=True)] == [True, False, True]
    assert (int(before[1]["state"][2]), int(after[1]["state"][2])) == (FREE, USED)
    assert [len(block) for block in after] == [BLOCK_PAGES, BLOCK_PAGES, 5]
    tracker.set_fill(7, 3)
    assert (int(tracker.blocks()[0]["fill"][7]), int(after[0]["fill"][7])) == (3, 4)


LEFT = (PageShared(KEPT, 7, 2), PageFreed(0, 7, 1, True))  # the live step becomes a kept one


@pytest.mark.parametrize(
    ("events", "state", "owner", "num_kept", "num_pages"),
    [
        (LEFT, PageCell.KEPT, KEPT, 1, 1),
        ((*LEFT, PageShared(0, 7, 2)), SHARED, 0, 1, 0),
        ((PageShared(KEPT, 7, 2),), SHARED, 0, 1, 0),  # a copy is kept, and the sequence goes on
        ((*LEFT, PageShared(KEPT, 7, 2)), PageCell.KEPT, KEPT, 2, 1),
        ((*LEFT, PageShared(0, 7, 2), PageFreed(KEPT, 7, 1, True)), USED, 0, 0, 0),
        ((*LEFT, PageFreed(KEPT, 7, 0, True)), CACHED, NO_OWNER, 0, 0),
        ((*LEFT, PageFreed(KEPT, 7, 0, False), TAKEN), USED, 0, 0, 0),
    ],
)
def test_pages_that_kept_checkpoints_alone_hold_are_told_from_used_ones(
    events: tuple[PageEvent, ...], state: int, owner: int, num_kept: int, num_pages: int
) -> None:
    tracker = PageTracker(24, 4)
    tracker.apply([TAKEN, *events], 9)
    cell = tracker.blocks()[0][7]
    assert (int(cell["state"]), int(cell["owner"]), int(cell["num_kept"])) == (state, owner, num_kept)
    assert tracker.num_kept_pages == num_pages
