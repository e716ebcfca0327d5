"""However a run comes to rest, what is watched is shown as it is then, and counted over all rows."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

from app.models.pictures import Pictures
from engine.look.transfer import Arrays, ObservationRing, PendingCopy
from engine.session.session import Session
from engine.spec.sampling import Prompt
from engine.wire.commands import Run, SetPace, SubmitPrompt, Watch, Watched
from engine.wire.events import Failed
from engine.wire.pictures import CellUpdate, HeadPicture, HeadRequest, WallPicture, WallRequest
from engine.wire.records import StepRecord
from tests.engine.loop.driver import Driver
from tests.engine.tiny import prompt_ids

WALL = Watched(WallRequest(0, 0, 0, "keys", False, 200, 8), id=1)
HEAD = Watched(HeadRequest(0, 0, "values", 1, 1, 0, 0, 200), id=2)
ALL, FEW = SetPace(None, 1e6), SetPace(None, 1e-6)  # pictures a second


@pytest.fixture
def counting_once(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """During its runs nothing is counted but with the first picture."""
    monkeypatch.setattr("engine.look.watch.COUNTS_PER_SECOND", 1e-6)
    monkeypatch.setattr("engine.look.watch.REST_RATIO", 0.0)
    driver.send(SubmitPrompt(Prompt(token_ids=prompt_ids(9)), num_steps=1))
    driver.wait_for(StepRecord)
    driver.rest()
    return driver


def check_shown(driver: Driver) -> None:
    """The newest pictures are what somebody gets who looks now for the first time."""
    pictures, session = Pictures(), driver.session
    pictures.put(*(event for event in driver.events if isinstance(event, WallPicture | HeadPicture | CellUpdate)))
    wall, head = pictures.wall, pictures.head
    assert wall is not None
    assert head is not None
    assert wall.num_tokens == head.request.num_tokens == session.sequence(0).num_tokens
    session.live.memos.forget(0)
    now: Any = session.take_picture(wall.request)
    assert np.array_equal(wall.high, now.high, equal_nan=True)
    assert np.array_equal(wall.magnitudes.limit, now.magnitudes.limit)
    now = session.take_picture(head.request)
    assert np.array_equal(head.high, now.high)
    assert np.array_equal(head.counts, now.counts)


@pytest.mark.parametrize("pace", [ALL, FEW])
def test_a_step_that_fails_ends_a_run(counting_once: Driver, pace: SetPace, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Session.step

    def failing(self: Session, *arguments: Any) -> StepRecord:
        if self.last_step == 12:
            raise ValueError("a broken step")
        return step(self, *arguments)

    monkeypatch.setattr(Session, "step", failing)
    counting_once.send(pace, Watch((WALL, HEAD)), Run())
    counting_once.wait(lambda: counting_once.of(Failed) and not counting_once.status.running)
    assert counting_once.session.last_step == 12
    check_shown(counting_once)


def test_a_step_that_cannot_be_read_ends_a_run(counting_once: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    session, ring = counting_once.session, ObservationRing(torch.device("cpu"), late_steps=2)
    session.observer.ring = ring
    read, num_read = ring.read, count(session.last_step + 1)

    def failing(sent: PendingCopy) -> Arrays:
        if next(num_read) == 12:
            raise ValueError("numbers that cannot be read")
        return read(sent)

    monkeypatch.setattr(ring, "read", failing)
    counting_once.send(ALL, Watch((WALL, HEAD)), Run())
    counting_once.wait(lambda: counting_once.of(Failed) and not counting_once.status.running)
    check_shown(counting_once)


def test_a_run_that_waits_long_for_its_next_step(counting_once: Driver) -> None:
    counting_once.send(ALL, Watch((WALL, HEAD)), Run(3), SetPace(1e-3, 1e6), Run())
    steps, activity = counting_once.engine.steps, counting_once.engine.activity
    counting_once.wait(lambda: steps.wait_s > 100 and not activity.what)
    counting_once.events += counting_once.loop.drain()
    assert counting_once.status.running
    check_shown(counting_once)
