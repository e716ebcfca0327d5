"""Watching and pacing through the engine's loop: pictures come with the steps, and a slow pace holds a run back."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from app.models.pictures import Pictures
from engine.client.outbox import MAX_PICTURES
from engine.look.watch import is_row_unchanged
from engine.session.pictures import PictureReader
from engine.spec.sampling import Prompt
from engine.wire.commands import GoTo, Pause, Run, SetPace, Step, SubmitPrompt, TakePicture, Watch, Watched
from engine.wire.events import Failed, StateChanged
from engine.wire.pictures import CellUpdate, RowPicture, RowRequest, WallPicture, WallRequest
from engine.wire.records import StepRecord
from tests.engine.loop.driver import Driver
from tests.engine.tiny import prompt_ids

WALL = Watched(WallRequest(0, 0, 0, "keys", False, 200, 8))


@pytest.fixture
def prompted(driver: Driver) -> Driver:
    driver.send(SubmitPrompt(Prompt(token_ids=prompt_ids(9)), num_steps=1))
    driver.wait_for(StepRecord)
    driver.rest()
    driver.forget()
    return driver


def numbers(driver: Driver, kind: type) -> list[int]:
    return [event.request.num_tokens for event in driver.of(kind)]


def test_a_picture_comes_with_every_step_and_before_the_engine_rests(prompted: Driver) -> None:
    prompted.send(SetPace(None, None), Watch((WALL,)), Step(5))
    prompted.wait_for(StepRecord, 5)
    prompted.rest()
    assert numbers(prompted, WallPicture) == [9]
    assert numbers(prompted, CellUpdate) == [10, 11, 12, 13, 14]
    kinds = [type(event) for event in prompted.events]
    last_picture = len(kinds) - 1 - kinds[::-1].index(CellUpdate)
    rests = [n for n, e in enumerate(prompted.events) if isinstance(e, StateChanged) and not e.status.running]
    assert last_picture < rests[-1]


def test_at_a_lower_rate_the_last_step_is_shown_all_the_same(prompted: Driver) -> None:
    prompted.send(SetPace(None, 1e-3), Watch((WALL,)), Step(6))
    prompted.wait_for(StepRecord, 6)
    prompted.rest()
    assert numbers(prompted, CellUpdate)[-1] == 15
    assert len(prompted.of(CellUpdate)) <= 2


def test_a_stalled_window_gets_many_steps_as_one_picture(prompted: Driver) -> None:
    """It takes nothing for a hundred steps: their records wait, and of their pictures no more than may."""
    prompted.send(SetPace(None, None), Watch((WALL,)), Run(100))
    activity, session = prompted.engine.activity, prompted.session
    while session.last_step != 100 or activity.what:
        time.sleep(0.002)
    prompted.rest()
    assert len(prompted.of(StepRecord)) == 100
    pieces: list[Any] = [event for event in prompted.events if isinstance(event, WallPicture | CellUpdate)]
    assert MAX_PICTURES <= len(pieces) <= MAX_PICTURES + 1
    assert [piece.request.num_tokens for piece in pieces[-2:]] == [40, 109], "what waited, then the newest step"
    prompted.forget()
    prompted.send(TakePicture(structs.replace(WALL.request, num_tokens=109, previous_tokens=109)))
    now = prompted.wait_for(WallPicture)
    pictures = Pictures()
    pictures.put(*pieces)
    assert pictures.wall is not None
    assert np.array_equal(pictures.wall.high, now.high, equal_nan=True)


def test_a_picture_that_fails_takes_no_other_with_it(prompted: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal answers the picture that failed; the wall goes on, and the row can be watched again."""
    row = Watched(RowRequest(0, 0, 3), id=52)
    picture, are_failing = PictureReader.picture, [True]

    def failing(self: PictureReader, request: Any, visible: Any) -> Any:
        if isinstance(request, RowRequest) and are_failing:
            raise ValueError("a broken row")
        return picture(self, request, visible)

    monkeypatch.setattr(PictureReader, "picture", failing)
    prompted.send(SetPace(None, None), Watch((structs.replace(WALL, id=51), row)), Step(3))
    prompted.wait_for(StepRecord, 3)
    prompted.rest()
    assert numbers(prompted, CellUpdate) == [10, 11, 12]
    assert [(f.reply_to, "a broken row" in f.message) for f in prompted.of(Failed)] == [(52, True)]
    are_failing.clear()
    prompted.send(Watch((structs.replace(WALL, id=51), row)), Step(1))
    prompted.wait_for(RowPicture)
    prompted.rest()
    assert numbers(prompted, WallPicture) == [9], "the wall was watched all the while"
    assert numbers(prompted, CellUpdate) == [10, 11, 12, 13]


def test_a_picture_that_fails_after_a_step_is_told_and_the_others_go_on(
    prompted: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Watched(RowRequest(0, 0, 3), id=52)
    prompted.send(SetPace(None, None), Watch((row, structs.replace(WALL, id=51))))
    prompted.wait_for(WallPicture)
    prompted.rest()

    def failing(picture: Any, source: Any) -> bool:
        if isinstance(picture.sent, RowPicture):
            raise ValueError("a broken row")
        return is_row_unchanged(picture, source)

    monkeypatch.setattr("engine.look.watch.is_row_unchanged", failing)
    prompted.send(Step(3))
    prompted.wait_for(StepRecord, 3)
    prompted.rest()
    assert numbers(prompted, CellUpdate) == [10, 11, 12]
    assert [f.reply_to for f in prompted.of(Failed)] == [52]


def test_going_back_ends_watching(prompted: Driver) -> None:
    prompted.send(SetPace(None, None), Watch((WALL,)), Step(3))
    prompted.wait_for(StepRecord, 3)
    prompted.rest()
    prompted.forget()
    prompted.send(GoTo(1), Step(1))
    prompted.wait_for(StepRecord)
    prompted.rest()
    assert not prompted.of(WallPicture) + prompted.of(CellUpdate)


@pytest.mark.parametrize("steps_per_second", [1e-4, 5e-324])
def test_a_slow_pace_holds_a_run_back_but_no_step_and_no_pause(prompted: Driver, steps_per_second: float) -> None:
    """The first token at once, the next in three hours, or later than a clock can wait."""
    prompted.send(SetPace(steps_per_second, None), Run())
    prompted.wait_for(StepRecord)
    prompted.send(Step(2))
    prompted.wait_for(StepRecord, 3)
    prompted.send(Run(), Pause())
    assert not prompted.rest().running
    prompted.send(SetPace(None, None), Run(4))
    prompted.wait_for(StepRecord, 7)
    prompted.rest()


def test_a_run_that_is_held_back_goes_on_when_the_pace_is_lifted(prompted: Driver) -> None:
    prompted.send(SetPace(1e-4, None), Run(3))
    prompted.wait_for(StepRecord)
    prompted.send(SetPace(None, None))
    prompted.wait_for(StepRecord, 3)
    assert not prompted.rest().running


@pytest.mark.parametrize("pace", [SetPace(0, None), SetPace(None, -1.0), SetPace(float("nan"), None)])
def test_a_pace_of_nothing_is_refused(prompted: Driver, pace: SetPace) -> None:
    prompted.send(pace)
    assert "give more than 0" in prompted.wait_for(Failed).message


def test_a_layer_that_is_not_there_is_refused_in_one_sentence(prompted: Driver) -> None:
    from engine.wire.pictures import HeadRequest

    prompted.send(Watch((Watched(HeadRequest(0, 9, "keys", 99, 0, 0, 9, 8)),)))
    assert prompted.wait_for(Failed).message.startswith("There is no layer 99")
    prompted.send(Step(1))
    prompted.wait_for(StepRecord)
