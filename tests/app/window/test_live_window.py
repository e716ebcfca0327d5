"""The whole program on a real engine with tiny models: the short forms of `tests.benchmarks.window_monkey` and
`tests.benchmarks.window_soak`."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication

from engine.spec.cache import cache_preset
from tests.benchmarks.window_monkey import play
from tests.benchmarks.window_soak import slope_of, soak
from tests.effort import effort


def test_random_actions_on_a_real_engine_break_nothing_and_leave_nothing_over(qapp: QApplication) -> None:
    count = effort(150, 5_000)
    outcome = play(qapp, seed=11, num_actions=count)
    assert outcome.done.total() == count
    assert len(outcome.done) > 60, "many different actions"


def test_a_long_session_holds_no_more_than_a_short_one(qapp: QApplication) -> None:
    names = effort(("growing", "h2o"), ("growing", "paged", "h2o", "int8", "kivi-2", "static", "offloaded"))
    outcome = soak(qapp, effort(0, 5_000), modes=[cache_preset(name).spec for name in names])
    assert outcome.grown == []
    assert outcome.rounds[-1].num_steps >= 3 * 20 * len(names), "steps were done"


def test_the_slope_of_a_line_and_of_noise() -> None:
    rising = slope_of([(x, 7.0 + 300.0 * x) for x in range(9)])
    assert rising.value == pytest.approx(300.0)
    assert rising.is_growth
    noise = slope_of([(x, 5e6 * (x % 2)) for x in range(9)])
    assert not noise.is_growth
    assert noise.error > 1e5
    assert not slope_of([(0, 0.0), (1, 1e9)]).is_growth, "two points tell nothing"
