"""What happened to pages in words: whoever holds one is named as a person knows him."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.kit.words import MAX_LINES, event_line, record_lines, why_not_reused
from app.models import Models
from engine.wire.pages import (
    KEPT,
    EvictReason,
    Forked,
    MoveDirection,
    PageAllocated,
    PageCommitted,
    PageCopied,
    PageEvent,
    PageEvicted,
    PageFreed,
    PageMoved,
    PageShared,
    PrefixHit,
    PrefixMiss,
    Tier,
)
from engine.wire.status import SequenceInfo
from tests.app import samples


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (PageShared(KEPT, 3, 2), "a checkpoint shares page 3 (ref count 2)"),
        (PageShared(1, 3, 2), "seq 1 shares page 3 (ref count 2)"),
        (PageAllocated(KEPT, 3), "a checkpoint took page 3"),
        (PageFreed(KEPT, 3, 1, False), "a checkpoint let go of page 3 (ref count 1)"),
        (PageFreed(KEPT, 3, 0, False), "a checkpoint let go of page 3: free again"),
        (PageCopied(KEPT, 2, 3, 4), "copy on write: a checkpoint writes to page 3, 4 tokens copied from page 2"),
        (PageCopied(1, 2, 3, 1), "copy on write: seq 1 writes to page 3, 1 token copied from page 2"),
    ],
)
def test_a_kept_checkpoint_is_no_sequence(event: PageEvent, line: str) -> None:
    assert event_line(event) == line


HERE = PageCommitted(3, bytes(range(32)), b"", b"", Tier.DEVICE)
THERE = replace(HERE, page_id=9, tier=Tier.HOST)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (PageAllocated(1, 3), "seq 1 took page 3"),
        (PageFreed(1, 3, 0, True), "seq 1 let go of page 3: kept for reuse"),
        (PageFreed(1, 3, 2, True), "seq 1 let go of page 3 (ref count 2)"),
        (PrefixHit(1, 3400, 1200, (3,)), "prefix hit: seq 1 starts with 1,200 of 3,400 tokens served"),
        (PrefixMiss(1, 3400), "prefix miss: seq 1 computes all 3,400 tokens"),
        (HERE, "page 3 is full and can be found as 00010203"),
        (THERE, "host page 9 is full and can be found as 00010203"),
        (PageEvicted(HERE, EvictReason.ROOM), "evicted page 3: its room was needed"),
        (PageEvicted(THERE, EvictReason.REQUEST), "evicted host page 9: it was asked for"),
        (PageEvicted(HERE, EvictReason.OVERWRITE), "evicted page 3: it holds other tokens now"),
        (PageMoved(MoveDirection.TO_HOST, 3, 9, b"", 2048, 1.5), "copied page 3 to the host, 2.0 KiB in 1.50 ms"),
        (PageMoved(MoveDirection.TO_DEVICE, 3, 9, b"", 512, 1.5), "read page 3 back from the host, 512 B in 1.50 ms"),
    ],
)  # fmt: skip
def test_every_event_of_a_page_has_its_words(event: PageEvent, line: str) -> None:
    assert event_line(event) == line


@pytest.mark.parametrize(("num_events", "more"), [(MAX_LINES, []), (MAX_LINES + 2, ["… and 2 more"])])
def test_more_events_than_lines_are_counted_and_whoever_waits_is_none_of_them(num_events: int, more: list[str]) -> None:
    events = tuple(PageAllocated(0, 1 + number) for number in range(num_events))
    record = replace(samples.step_record(1), preempted=(2,), waiting=(3,), page_events=events)
    lines = record_lines(record)
    assert lines[1:3] == ["seq 3 waits for room", "seq 0 took page 1"]
    assert lines[2 + MAX_LINES :] == more
    assert lines[1 + MAX_LINES] == f"seq 0 took page {MAX_LINES}"


def test_a_fork_of_a_kept_checkpoint_is_told_by_its_pages_alone() -> None:
    info = SequenceInfo(1, "decode", 12, 4, 7, None, num_pages=3, num_shared_pages=2)
    kept, own = (why_not_reused(replace(info, why_not_reused=Forked(parent)), Models(), 4) for parent in (-1, 4))
    assert own == f"Forked from seq 4: {kept}"
