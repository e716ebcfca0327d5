"""What happened to pages in words: whoever holds one is named as a person knows him."""

from __future__ import annotations

import pytest

from app.kit.page_words import event_line
from engine.wire.page_events import KEPT, PageAllocated, PageCopied, PageEvent, PageFreed, PageShared


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
