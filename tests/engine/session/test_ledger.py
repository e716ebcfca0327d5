"""What the bytes of a layer are beside the numbers of its tokens, in sums over sequences worked out by hand."""

from __future__ import annotations

from engine.cache.contract import HeldBytes
from engine.session.ledger import page_gaps, row_gaps
from engine.spec.cache import CacheSpec
from engine.wire.records import ByteGap

ONE = HeldBytes(stored=100, reserved=160, scales=10, residual=20, positions=8, dequantised=300, journal=5)
TWO = HeldBytes(stored=50, reserved=60, scales=4, residual=6, positions=2, dequantised=120, journal=7)


def named(gaps: list[ByteGap]) -> dict[str, tuple[int, str]]:
    found = {gap.name: (gap.num_bytes, gap.part) for gap in gaps}
    assert len(found) == len(gaps)
    return found


def test_what_sequences_hold_is_added_up_but_only_one_copy_lives_at_a_time() -> None:
    assert named(row_gaps([ONE, TWO], CacheSpec(), 70)) == {
        "scales and offsets": (14, "stored"),
        "exact residual": (26, "stored"),
        "positions of the rows kept": (10, "reserved"),
        "room to grow": (60, "reserved"),  # what is reserved and not stored, but for the positions
        "dequantised copy": (300, "transient"),  # the larger of both: one after the other is computed
        "rows kept for going back": (12, "looking"),
    }


def test_room_of_a_static_cache_is_padding() -> None:
    found = named(row_gaps([ONE], CacheSpec("static", max_length=64), 60))
    assert found["padding to the reserved length"] == (52, "reserved")
    assert "room to grow" not in found


def test_shared_pages_have_their_scales_once_and_slack_is_no_more_than_what_is_unfilled() -> None:
    shared = HeldBytes(stored=40, scales=3)
    assert named(page_gaps([ONE, TWO], shared, 30, 500)) == {
        "scales and offsets": (11, "stored"),
        "page slack": (30, "reserved"),
        "pages not in use": (470, "reserved"),
        "dequantised copy": (300, "transient"),
    }
    tight = named(page_gaps([ONE], HeldBytes(), 30, 20))
    assert (tight["page slack"][0], tight["pages not in use"][0]) == (20, 0)


def test_nothing_held_is_nothing() -> None:
    assert {size for size, _ in named(row_gaps([], CacheSpec(), 0)).values()} == {0}
