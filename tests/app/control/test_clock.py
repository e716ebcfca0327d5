from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.control import clock as clocks
from app.control.clock import RUNG_MS, WORDS_MS, TickClock
from app.control.controller import IDLE_MS, RUNNING_MS, Controller
from app.models import Models
from engine.wire.events import StateChanged
from tests.app import samples
from tests.app.fake_engine import FakeEngine


class Times:
    """The clock of the process, turned by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    times = Times()
    monkeypatch.setattr(clocks, "time", times)
    return times


@pytest.fixture
def tick(models: Models, engine: FakeEngine, times: Times, qtbot: QtBot) -> Callable[..., tuple[int, bool]]:
    """One tick of a clock over an engine that has taken a step: the next interval, and whether words were told."""
    controller = Controller(models, engine.send, engine.drain)
    engine.loaded()
    controller.tick()
    engine.is_silent = True
    clock = TickClock(controller)
    clock.start()
    clock._timer.blockSignals(True)  # the test is the timer
    told: list[int] = []
    models.timeline.texts_due.connect(lambda: told.append(1))
    step = 0

    def tick(*, running: bool = True) -> tuple[int, bool]:
        nonlocal step
        engine.emit(samples.step_record(step), StateChanged(samples.status(1, num_tokens=step + 1, running=running)))
        step += 1
        told.clear()
        clock._on_timeout()
        interval_ms = clock._timer.interval()
        times.now_s += interval_ms / 1e3
        return interval_ms, bool(told)

    return tick


def test_a_running_engine_is_followed_as_often_as_pictures_come(tick: Callable[..., tuple[int, bool]]) -> None:
    assert {tick()[0] for _ in range(4)} == {RUNNING_MS}
    assert RUNNING_MS <= 1000 / 25


def test_words_follow_as_often_as_they_can_be_read(tick: Callable[..., tuple[int, bool]]) -> None:
    tick()
    told = [tick()[1] for _ in range(90)]
    seconds = 90 * RUNNING_MS / 1e3
    assert seconds * 1000 / WORDS_MS - 1 <= sum(told) <= seconds * 1000 / WORDS_MS + 1


def test_the_pace_of_words_is_not_made_slower_by_the_ticks(tick: Callable[..., tuple[int, bool]]) -> None:
    """250 ms are no whole number of ticks: what is told late does not put off all that follows."""
    tick()
    told = [tick()[1] for _ in range(1000)]
    assert sum(told) == pytest.approx(1000 * RUNNING_MS / WORDS_MS, abs=1)


def test_words_that_were_held_up_are_not_made_up_for(tick: Callable[..., tuple[int, bool]], times: Times) -> None:
    tick()
    times.now_s += 5.0
    told = [tick()[1] for _ in range(9)]
    assert sum(told) <= 3


def test_at_rest_nothing_waits(tick: Callable[..., tuple[int, bool]]) -> None:
    tick()
    tick()
    assert not tick()[1]
    assert tick(running=False)[1]


@pytest.fixture
def clock(models: Models, engine: FakeEngine, times: Times, qtbot: QtBot) -> TickClock:
    """A clock over an engine that rests, started; the test is its timer."""
    controller = Controller(models, engine.send, engine.drain)
    engine.loaded()
    controller.tick()
    engine.is_silent = True
    controller.waiting._eager_until = 0.0
    clock = TickClock(controller)
    clock.start()
    clock._timer.blockSignals(True)
    clock._on_timeout()
    return clock


def rung(clock: TickClock, qtbot: QtBot) -> int:
    """Ring from another thread; the interval of the clock's timer once it has heard."""
    heard: list[int] = []
    clock._rung.connect(lambda: heard.append(1), Qt.ConnectionType.QueuedConnection)
    thread = threading.Thread(target=clock.ring)
    thread.start()
    thread.join()
    assert not heard, "nothing is done on the other thread"
    qtbot.waitUntil(lambda: bool(heard))
    return clock._timer.interval()


def test_an_engine_that_rests_is_heard_at_once(clock: TickClock, times: Times, qtbot: QtBot) -> None:
    assert clock._timer.interval() == IDLE_MS
    times.now_s += 0.05
    assert rung(clock, qtbot) == 0


def test_an_engine_that_runs_is_heard_a_frame_after_the_last_tick(
    clock: TickClock, engine: FakeEngine, times: Times, qtbot: QtBot
) -> None:
    engine.emit(StateChanged(samples.status(1, num_tokens=5, running=True)))
    clock._on_timeout()
    times.now_s += (RUNNING_MS - 12) / 1e3
    assert rung(clock, qtbot) == 12
    times.now_s += 0.2
    assert rung(clock, qtbot) == 0


def test_who_rings_is_not_looked_after(clock: TickClock, engine: FakeEngine, times: Times, qtbot: QtBot) -> None:
    engine.emit(StateChanged(samples.status(1, num_tokens=5, running=True)))
    clock._on_timeout()
    assert clock._timer.interval() == RUNNING_MS
    rung(clock, qtbot)
    clock._on_timeout()
    assert clock._timer.interval() == RUNG_MS
    engine.emit(StateChanged(samples.status(1, num_tokens=6)))
    clock._on_timeout()
    assert clock._timer.interval() == IDLE_MS
