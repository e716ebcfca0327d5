from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.control import controller as clocks
from app.control.controller import FRAME_MS, POLL_MS, WORDS_MS, Controller, FrameClock
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
def tick(models: Models, engine: FakeEngine, times: Times, qtbot: QtBot) -> Callable[..., bool]:
    """One frame of a clock over an engine that has taken a step, a frame after the last: whether words were told."""
    controller = Controller(models, engine.send, engine.drain)
    engine.loaded()
    controller.tick()
    engine.is_silent = True
    clock = FrameClock(controller)
    clock.start()
    clock.timer.blockSignals(True)  # the test is the timer
    told: list[int] = []
    models.timeline.texts_due.connect(lambda: told.append(1))
    step = 0

    def tick(*, running: bool = True) -> bool:
        nonlocal step
        engine.emit(samples.step_record(step), StateChanged(samples.status(1, num_tokens=step + 1, running=running)))
        step += 1
        told.clear()
        clock.on_frame()
        times.now_s += FRAME_MS / 1e3
        return bool(told)

    return tick


def test_words_follow_as_often_as_they_can_be_read(tick: Callable[..., bool]) -> None:
    tick()
    told = [tick() for _ in range(90)]
    seconds = 90 * FRAME_MS / 1e3
    assert seconds * 1000 / WORDS_MS - 1 <= sum(told) <= seconds * 1000 / WORDS_MS + 1


def test_the_pace_of_words_is_not_made_slower_by_the_ticks(tick: Callable[..., bool]) -> None:
    """250 ms are no whole number of ticks: what is told late does not put off all that follows."""
    tick()
    told = [tick() for _ in range(1000)]
    assert sum(told) == pytest.approx(1000 * FRAME_MS / WORDS_MS, abs=1)


def test_words_that_were_held_up_are_not_made_up_for(tick: Callable[..., bool], times: Times) -> None:
    tick()
    times.now_s += 5.0
    told = [tick() for _ in range(9)]
    assert sum(told) <= 3


def test_at_rest_nothing_waits(tick: Callable[..., bool]) -> None:
    tick()
    tick()
    assert not tick()
    assert tick(running=False)


@pytest.fixture
def clock(
    models: Models, engine: FakeEngine, times: Times, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> FrameClock:
    """A clock over an engine that rests, started; the test is its timer."""
    monkeypatch.setattr("app.control.sender.EAGER_FOR_S", 0.0)
    controller = Controller(models, engine.send, engine.drain)
    engine.loaded()
    controller.tick()
    engine.is_silent = True
    clock = FrameClock(controller)
    clock.start()
    clock.timer.blockSignals(True)
    clock.on_frame()
    return clock


def rung(clock: FrameClock) -> int:
    """Ring from another thread; the interval of the clock's timer once it has heard."""
    before = clock.timer.interval()
    thread = threading.Thread(target=clock.ring)
    thread.start()
    thread.join()
    assert clock.timer.interval() == before, "nothing is done on the other thread"
    QApplication.processEvents()
    return clock.timer.interval()


def test_an_engine_that_rests_is_heard_at_once(clock: FrameClock, times: Times) -> None:
    assert clock.timer.interval() == POLL_MS
    times.now_s += 0.05
    assert rung(clock) == 0


def test_an_engine_that_runs_is_heard_a_frame_after_the_last_tick(
    clock: FrameClock, engine: FakeEngine, times: Times
) -> None:
    engine.emit(StateChanged(samples.status(1, num_tokens=5, running=True)))
    clock.on_frame()
    times.now_s += (FRAME_MS - 12) / 1e3
    assert rung(clock) == 12
    times.now_s += 0.2
    assert rung(clock) == 0


def test_who_does_not_ring_is_looked_after(clock: FrameClock, engine: FakeEngine) -> None:
    for running in (True, False):
        engine.emit(StateChanged(samples.status(1, num_tokens=5, running=running)))
        clock.on_frame()
        assert clock.timer.interval() == POLL_MS
