"""Whether a loop gets on, by a clock of the test's own: nothing here waits."""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import Any

import pytest

from engine.client.pulse import BUSY_S, HANGS_S, Pulse, Said
from engine.client.thread import ThreadClient
from engine.loop.inbox import Activity
from engine.wire.commands import Tokenize
from engine.wire.events import EngineBack, EngineBusy, EngineLost, Event, Failed


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Looked:
    """A pulse, looked at once a second."""

    def __init__(self) -> None:
        self.activity, self.clock = Activity(), Clock()
        self.pulse = Pulse(self.activity, self.clock)
        self.pulse.beat()

    def seconds(self, count: int) -> list[Said]:
        said: list[Said] = []
        for _ in range(count):
            self.clock.now += 1
            said += self.pulse.beat()
        return said


def lost_of(said: list[Any]) -> list[EngineLost]:
    return [event for event in said if isinstance(event, EngineLost)]


def test_what_it_is_busy_with_is_said_from_two_seconds_on_and_that_it_may_hang_before_ten() -> None:
    looked = Looked()
    looked.activity.begin("going back")
    assert looked.seconds(1) == []
    assert looked.seconds(2) == [EngineBusy("going back", 2)]
    said = looked.seconds(10)
    assert said[:6] == [EngineBusy("going back", number) for number in range(3, 9)]
    (lost,) = lost_of(said)
    assert not lost.has_ended
    assert "busy with going back" in lost.cause
    assert said[said.index(lost) - 1] == EngineBusy("going back", 9)
    assert HANGS_S + 1 <= 10


def test_a_long_forward_that_gets_on_is_neither_busy_nor_lost() -> None:
    looked = Looked()
    looked.activity.begin("a decode step")
    for _ in range(40):
        looked.activity.mark()
        assert looked.seconds(int(BUSY_S)) == []


def test_an_import_gets_on_with_every_module(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = Looked()
    looked.activity.begin("starting torch and transformers")
    for number in range(6):
        monkeypatch.setitem(sys.modules, f"a_module_{number}", ModuleType("x"))
        assert not lost_of(looked.seconds(8))


def test_what_gets_on_again_says_so_and_waits_anew() -> None:
    looked = Looked()
    looked.activity.begin("writing a snapshot")
    assert len(lost_of(looked.seconds(12))) == 1
    looked.activity.mark()
    assert looked.seconds(1) == [EngineBusy("", 0), EngineBack()]
    assert looked.seconds(2) == [EngineBusy("writing a snapshot", 2)]
    looked.activity.begin("")
    assert looked.seconds(1) == [EngineBusy("", 0)]
    assert looked.seconds(100) == [], "it waits for a command"


def test_a_process_that_was_stopped_for_an_hour_blames_nobody() -> None:
    looked = Looked()
    looked.activity.begin("a decode step")
    looked.seconds(1)
    looked.clock.now += 3600
    assert not lost_of(list(looked.pulse.beat()))


def test_a_loop_that_sleeps_in_a_thread_is_named_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real loop, stuck in a command; the time that its client reads is the test's."""
    begun, wake, clock = threading.Event(), threading.Event(), Clock()

    def sleep(*_: object) -> None:
        begun.set()
        wake.wait(300.0)

    monkeypatch.setattr("engine.loop.loop.EngineLoop.handle", sleep)
    client = ThreadClient(clock)
    client.drain()
    client.send(Tokenize("a text"))
    assert begun.wait(300.0)
    events: list[Event] = []
    for _ in range(12):
        clock.now += 1
        events += client.drain()
    assert EngineBusy("counting tokens", 5) in events
    (lost,) = lost_of(events)
    assert (lost.has_ended, "counting tokens" in lost.cause) == (False, True)
    wake.set()
    while not any(isinstance(event, EngineBack) for event in events):
        events += client.drain()
    assert client.close(300)
    assert not [event for event in events if isinstance(event, Failed)]
