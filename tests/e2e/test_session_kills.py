"""A few kills of a working window, which never imports torch; many kills: `tests/benchmarks/session_kills.py`."""

from __future__ import annotations

from tests.benchmarks.session_kills import kills
from tests.effort import effort


def test_everything_that_was_shown_is_offered_after_a_kill() -> None:
    count = effort(1, 20)
    tally = kills(count, seed=28)  # the first window works for two seconds, and its engine is not killed
    assert tally.problems == []
    assert tally.fates["a window at work"] + tally.fates["a window that was taking a session up"] == count
    assert tally.num_steps > 0
