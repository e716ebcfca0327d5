"""A what-if in the loop: the run behind its estimate, and what ends it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from engine import errors
from engine.analysis import what_if
from engine.loop.measuring import GIVEN_UP
from engine.session.rerun import Outcome, Reruns
from engine.spec.cache import cache_named, cache_preset
from engine.wire.commands import Cancel, FindModels, GoTo, RemoveSequence, SetCache, Step, TakePicture
from engine.wire.events import Cancelled, Done, Failed, StateChanged
from engine.wire.measurements import WhatIf, WhatIfAnswer
from engine.wire.message import Command
from engine.wire.pictures import WallRequest
from engine.wire.records import StepRecord
from tests.engine.loop.driver import PATIENCE_S, Driver, prompt

INT8 = cache_named("int8")


def tried(driver: Driver, then: Command) -> list[WhatIfAnswer]:
    """All answers to a what-if behind which another command waits, whenever this thread gets to send it."""
    driver.send(prompt(12), Step(4))
    driver.wait_for(StepRecord, 4)
    driver.rest()
    are_sent, estimated = threading.Event(), what_if.estimated

    def estimate(trial: what_if.Trial, request: WhatIf) -> Outcome:
        are_sent.wait(PATIENCE_S)
        return estimated(trial, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(what_if, "estimated", estimate)
        driver.send(WhatIf(0, INT8, id=7), then)
        are_sent.set()
        driver.wait_for(WhatIfAnswer)
    driver.rest()
    driver.wait(lambda: not driver.engine.activity.what)  # nor is there anything to be tried
    driver.events += driver.loop.drain()
    assert not driver.of(Failed)
    return driver.of(WhatIfAnswer)


@pytest.fixture(autouse=True)
def _an_estimate_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "AT_ONCE_S", -1.0)


@pytest.mark.parametrize(
    "then",
    [SetCache(cache_preset("paged").spec), GoTo(1), RemoveSequence(0), Cancel(), Step(), prompt(5)],
    ids=lambda command: type(command).__name__,
)
def test_whatever_changes_what_was_asked_about_ends_the_run(driver: Driver, then: Command) -> None:
    assert [answer.is_estimate for answer in tried(driver, then)] == [True]
    assert driver.last_words() == [Cancelled(reply_to=7)]


@pytest.mark.parametrize("then", [FindModels(), TakePicture(WallRequest(0, 15, 15, "keys", False, 9, 4))])
def test_a_look_does_not(driver: Driver, then: Command) -> None:
    assert [answer.is_estimate for answer in tried(driver, then)] == [True, False]
    assert driver.last_words() == [Done(reply_to=7)]


def test_a_trial_that_took_a_while_is_not_worked_on_any_more(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.loop.reporter.PROGRESS_INTERVAL_S", -1.0)
    monkeypatch.setattr(what_if, "AT_ONCE_S", 60.0)  # no estimate: it is run while its command is in hand
    driver.send(prompt(12), Step(4))
    driver.wait_for(StepRecord, 4)
    driver.rest()
    driver.forget()
    driver.send(WhatIf(0, INT8))
    driver.wait_for(WhatIfAnswer)
    assert any(event.status.work is not None for event in driver.of(StateChanged))
    driver.wait(lambda: driver.status.work is None)


def test_a_run_whose_compilation_is_given_up_says_so(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def given_up(*_: object) -> Iterator[None]:
        raise errors.Cancelled
        yield

    monkeypatch.setattr(Reruns, "run", given_up)
    driver.send(prompt(12), Step(4))
    driver.wait_for(StepRecord, 4)
    driver.rest()
    driver.send(WhatIf(0, INT8, id=7))
    failed = driver.wait_for(Failed)
    assert (failed.message, failed.reply_to) == (GIVEN_UP, 7)
    assert [answer.is_estimate for answer in driver.of(WhatIfAnswer)] == [True]
