"""Work beside the loop: what it says meanwhile, what ends it, and what it raises."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import pytest
import torch

from engine.client.pulse import HANGS_S, Pulse
from engine.errors import Cancelled
from engine.loop import loading
from engine.loop.inbox import Activity, Inbox
from engine.loop.loading import LONG_TEXT, BackgroundWork
from engine.loop.reporter import Reporter
from engine.model.runners import compiler
from engine.spec.cache import CacheSpec
from engine.spec.sampling import SamplingParams
from engine.wire.commands import Cancel, Pause, SetCache, Step
from engine.wire.events import EngineLost, Event, Failed, StateChanged
from engine.wire.message import Command
from engine.wire.records import StepRecord
from engine.wire.status import EngineStatus, Work
from tests.engine.loop.driver import Driver, prompt


class Desk:
    """A loop's inbox and what it says."""

    def __init__(self) -> None:
        self.activity = Activity()
        self.events: list[Event] = []
        self.inbox = Inbox(self.activity, self.events.append)
        self.reporter = Reporter(self.events.append, self._status, self.activity, self.inbox)
        self.beside = BackgroundWork(self.inbox, self.reporter).compile

    def _status(self) -> EngineStatus:
        return EngineStatus(None, CacheSpec(), SamplingParams(), (), None, running=False, work=self.reporter.work)

    def works(self) -> list[Work]:
        return [each.status.work for each in self.events if isinstance(each, StateChanged) and each.status.work]


def endless() -> Any:
    while True:
        try:
            time.sleep(0.001)
        except Exception:  # what a compiler does
            continue


def at_work() -> set[threading.Thread]:
    """The threads beside loops. One that another test gave up may still be among them."""
    return {thread for thread in threading.enumerate() if thread.name == "kvloupe-beside"}


@pytest.mark.parametrize("command", [Cancel(), Pause()])
def test_a_command_that_ends_a_step_ends_the_work_and_still_waits(command: Command) -> None:
    desk, before = Desk(), at_work()
    desk.inbox.put(command)
    with pytest.raises(Cancelled):
        desk.beside(endless)
    assert at_work() <= before
    assert desk.inbox.take() == command


def test_what_the_work_raises_is_raised_here_and_what_it_does_is_done() -> None:
    desk, done = Desk(), []

    def failing() -> None:
        raise ValueError(threading.current_thread().name)

    with pytest.raises(ValueError, match="kvloupe-beside"):
        desk.beside(failing)
    desk.beside(lambda: done.append(1))
    assert done == [1]
    assert not desk.events, "nothing is said where nobody has said what is done"


def test_a_long_text_is_tokenised_beside_and_given_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, before = Desk(), at_work()
    tokenising = BackgroundWork(desk.inbox, desk.reporter).tokenise
    named_after_s = loading.NAMED_AFTER_S
    monkeypatch.setattr(loading, "NAMED_AFTER_S", 600.0)
    names = [tokenising(chars, lambda: threading.current_thread().name) for chars in (LONG_TEXT - 1, LONG_TEXT)]
    assert names == [threading.current_thread().name, "kvloupe-beside"]
    assert not desk.events, "what takes no time is not reported"
    with pytest.raises(KeyError):
        tokenising(LONG_TEXT, lambda: {}["no such token"])
    monkeypatch.setattr(loading, "NAMED_AFTER_S", named_after_s)
    began = threading.Event()

    def native() -> Any:  # it returns to Python only when it is done
        began.set()
        until_cancelled.wait(300)

    until_cancelled = threading.Event()
    threading.Thread(target=lambda: (began.wait(), wait_for_words(desk), desk.inbox.put(Cancel()))).start()
    with pytest.raises(Cancelled):
        tokenising(LONG_TEXT, native)
    assert [(work.label, work.can_cancel) for work in desk.works()] == [("Tokenising 20,000 characters", True)]
    told = [event.status.work for event in desk.events if isinstance(event, StateChanged)]
    assert told[-1] is desk.reporter.work is None, "and that it is over"
    assert desk.inbox.take() is None, "the cancel is used up"
    assert at_work() - before, "nobody waits for it"
    until_cancelled.set()
    deadline = time.monotonic() + 300
    while at_work() - before:
        assert time.monotonic() < deadline, "it ends by itself"
        time.sleep(0.001)


def wait_for_words(desk: Desk) -> None:
    deadline = time.monotonic() + 300
    while not desk.events and time.monotonic() < deadline:
        time.sleep(0.001)


def test_it_says_how_long_it_takes_and_nobody_takes_it_for_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of it is a hundredth of one here; the watch beside it sees all of them."""
    monkeypatch.setattr(loading, "REPORTS_EVERY_S", 0.01)
    desk, now = Desk(), [0.0]
    pulse, said = Pulse(desk.activity, lambda: now[0]), list[object]()

    def work() -> None:
        for _ in range(int(HANGS_S) + 3):
            marks = desk.activity.num_marks
            while desk.activity.num_marks == marks:
                time.sleep(0.001)
            now[0] += 1.0
            said.extend(pulse.beat())

    with desk.reporter.meanwhile("Compiling a step"):
        desk.beside(work)
    assert not any(isinstance(each, EngineLost) for each in said)
    labels = [work.label for work in desk.works()]
    assert labels[0] == "Compiling a step"
    # a busy machine may begin to wait later than a hundredth of a second after the work began
    assert all(re.fullmatch(r"Compiling a step(, [1-9]\d* s)?", label) for label in labels[1:])
    assert labels[-1].startswith("Compiling a step, ")
    assert labels[-1].endswith(" s")
    assert [work.can_cancel for work in desk.works()][:2] == [False, True]
    assert desk.reporter.work is None


def test_a_step_that_is_compiled_can_be_given_up_and_is_compiled_when_it_comes_again(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "BACKEND", "eager")
    monkeypatch.setattr("engine.model.runners.runners.why_not_compiled", lambda device: "")
    torch.compiler.reset()  # it may have what another test had compiled

    def never(graph: Any, inputs: Any) -> Any:
        endless()

    driver.send(SetCache(CacheSpec("static-compiled", max_length=40)), prompt(5), Step())
    driver.wait_for(StepRecord)
    monkeypatch.setattr(compiler, "BACKEND", never)
    driver.send(Step())
    work = driver.wait(lambda: driver.status.work)
    assert work.label.startswith("Compiling the model's decode step")
    driver.send(Cancel())
    assert driver.rest().work is None
    assert len(driver.of(StepRecord)) == 1
    monkeypatch.setattr(compiler, "BACKEND", "eager")
    driver.send(Step())
    assert driver.wait_for(StepRecord, 2).runner == "transformers+compile"
    assert not driver.of(Failed)
