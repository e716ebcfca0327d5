from __future__ import annotations

from collections.abc import Callable

import pytest
from pytestqt.qtbot import QtBot

from app import clock as clocks
from app.clock import LONGEST_MS, LONGEST_WORDS_MS, REST_RATIO, WORDS_MS, Clock
from app.controller import RUNNING_MS, Controller
from app.models import Models
from engine.records import StateChanged
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


def test_a_costly_round_is_followed_by_a_longer_rest(round_of: Callable[..., tuple[int, bool]]) -> None:
    assert round_of(0.5)[0] == RUNNING_MS
    assert round_of(10)[0] == 10 * REST_RATIO
    assert round_of(200)[0] == LONGEST_MS
    assert round_of(1)[0] == RUNNING_MS


def test_words_follow_less_often_than_what_moves(round_of: Callable[..., tuple[int, bool]]) -> None:
    cheap = [round_of(1)[1] for _ in range(12)]
    assert cheap[0]
    every = -(-WORDS_MS // RUNNING_MS) + 1  # the round that the words took is known with the one after it
    assert 12 // every <= sum(cheap) <= 12 // every + 1


def test_costly_words_wait_longer_but_not_for_ever(round_of: Callable[..., tuple[int, bool]], times: Times) -> None:
    round_of(1)
    before, waits = times.now_s, []
    for _ in range(60):
        was = times.now_s
        if round_of(30)[1]:
            waits.append(was - before)
            before = was
    assert len(waits) > 5
    assert max(waits) * 1e3 <= LONGEST_WORDS_MS + 2 * LONGEST_MS


def test_an_engine_at_rest_is_told_of_at_once(round_of: Callable[..., tuple[int, bool]]) -> None:
    round_of(1)
    assert [round_of(30, running=False)[1] for _ in range(4)] == [True] * 4
