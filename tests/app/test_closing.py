"""The short form of `tests.benchmarks.closings`: a window with its engine is closed while it works, and is gone."""

from __future__ import annotations

from tests.benchmarks.closings import MOMENTS, WAYS, closings
from tests.effort import effort

FEW = [("prefill", "SIGTERM"), ("export", "close")]
ALL = [(moment, way) for moment in MOMENTS for way in WAYS]


def test_a_window_that_is_closed_while_it_works_leaves_nothing_behind() -> None:
    cases = effort(FEW, ALL)
    found = closings(cases, seed=5)
    assert len(found) == len(cases)
    assert [one for one in found if one.problems] == []
