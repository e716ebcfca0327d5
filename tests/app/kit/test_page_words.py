"""What happened to pages in words: whoever holds one is named as a person knows him."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.kit.page_words import MAX_LINES, event_line, record_lines, why_not_reused
from app.models import Models
from engine.wire.page_events import KEPT, PageAllocated, PageCopied, PageEvent, PageFreed, PageShared
from engine.wire.prefix_match import Forked
from engine.wire.status import SequenceInfo
from tests.app import samples


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (PageShared(KEPT, 3, 2), "a kept moment shares page 3 (ref count 2)"),
        (PageShared(1, 3, 2), "seq 1 shares page 3 (ref count 2)"),
        (PageAllocated(KEPT, 3), "a kept moment took page 3"),
        (PageFreed(KEPT, 3, 1, False), "a kept moment let go of page 3 (ref count 1)"),
        (PageFreed(KEPT, 3, 0, False), "a kept moment let go of page 3: free again"),
        (PageCopied(KEPT, 2, 3, 4), "copy on write: a kept moment writes to page 3, 4 tokens copied from page 2"),
    ],
)
def test_a_kept_moment_is_no_sequence(event: PageEvent, line: str) -> None:
    assert event_line(event) == line


@pytest.mark.parametrize(("num_events", "more"), [(MAX_LINES, []), (MAX_LINES + 2, ["… and 2 more"])])
def test_more_events_than_lines_are_counted_and_whoever_waits_is_none_of_them(num_events: int, more: list[str]) -> None:
    events = tuple(PageAllocated(0, 1 + number) for number in range(num_events))
    record = replace(samples.step_record(1), preempted=(2,), waiting=(3,), page_events=events)
    lines = record_lines(record)
    assert lines[1:3] == ["seq 3 waits for room", "seq 0 took page 1"]
    assert lines[2 + MAX_LINES :] == more
    assert lines[1 + MAX_LINES] == f"seq 0 took page {MAX_LINES}"


def test_a_fork_of_a_kept_moment_is_told_by_its_pages_alone() -> None:
    info = SequenceInfo(1, "decode", 12, 4, 7, None, num_pages=3, num_shared_pages=2)
    kept, own = (why_not_reused(replace(info, why_not_reused=Forked(parent)), Models(), 4) for parent in (-1, 4))
    assert own == f"Forked from seq 4: {kept}"
