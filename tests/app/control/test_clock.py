from __future__ import annotations

from collections.abc import Callable

import pytest
from pytestqt.qtbot import QtBot

from app.control import clock as clocks
from app.control.clock import LATEST_MS, REST_RATIO, SOONEST_MS, Clock
from app.control.controller import RUNNING_MS, Controller
from app.models import Models
from engine.wire.records import StateChanged
from tests.app import samples
from tests.app.fake_engine import FakeEngine


class Times:
    """The two clocks of the process, turned by hand."""

    def __init__(self) -> None:
        self.now_s, self.spent_s = 100.0, 5.0

    def monotonic(self) -> float:
        return self.now_s

    def thread_time(self) -> float:
        return self.spent_s


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    times = Times()
    monkeypatch.setattr(clocks, "time", times)
    return times


@pytest.fixture
def round_of(models: Models, engine: FakeEngine, times: Times, qtbot: QtBot) -> Callable[..., tuple[int, bool]]:
    """One tick of a clock over a running engine after a round that cost so much: the next pace, and whether words
    were told."""
    controller = Controller(models, engine.send, engine.drain)
    engine.loaded()
    controller.tick()
    engine.is_silent = True
    clock = Clock(controller)
    clock.start()
    clock._timer.blockSignals(True)  # the test is the timer
    told: list[int] = []
    models.timeline.legible.connect(lambda: told.append(1))
    step = 0

    def tick(cost_ms: float, *, running: bool = True) -> tuple[int, bool]:
        nonlocal step
        engine.emit(samples.step_record(step), StateChanged(samples.status(1, num_tokens=step + 1, running=running)))
        step += 1
        told.clear()
        times.spent_s += cost_ms / 1e3
        clock._on_timeout()
        pace_ms = clock._timer.interval()
        times.now_s += pace_ms / 1e3
        return pace_ms, bool(told)

    return tick


def test_what_moves_goes_on_at_one_pace(round_of: Callable[..., tuple[int, bool]]) -> None:
    assert {round_of(cost_ms)[0] for cost_ms in (0.5, 10, 200, 1)} == {RUNNING_MS}


def test_words_follow_as_often_as_they_can_be_read(round_of: Callable[..., tuple[int, bool]]) -> None:
    told = [round_of(0.5)[1] for _ in range(12)]
    every = -(-int(SOONEST_MS) // RUNNING_MS)
    assert 12 // every - 1 <= sum(told) <= 12 // every + 1


def test_what_the_window_costs_is_paid_back_before_words_come_again(
    round_of: Callable[..., tuple[int, bool]], times: Times
) -> None:
    """Words cost 20 ms and the rest 1 ms a round: over a while the window's share is no more than it should be."""
    began, spent, told = times.now_s, times.spent_s, 0
    costs = 1.0
    for _ in range(200):
        has_words = round_of(costs)[1]
        told += has_words
        costs = 21.0 if has_words else 1.0
    share = (times.spent_s - spent) / (times.now_s - began)
    assert 0.6 / REST_RATIO < share < 1.05 / REST_RATIO  # whole rounds come with a tick, not between two
    assert told > 20


def test_costly_words_are_late_but_come(round_of: Callable[..., tuple[int, bool]], times: Times) -> None:
    round_of(1)
    before, waits = times.now_s, []
    for _ in range(60):
        was = times.now_s
        if round_of(200)[1]:
            waits.append(was - before)
            before = was
    assert len(waits) > 5
    assert max(waits) * 1e3 <= LATEST_MS + RUNNING_MS


def test_an_engine_at_rest_is_told_of_at_once(round_of: Callable[..., tuple[int, bool]]) -> None:
    round_of(1)
    assert [round_of(30, running=False)[1] for _ in range(4)] == [True] * 4
