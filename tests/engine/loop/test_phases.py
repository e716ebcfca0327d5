"""A step in phases through the loop: it waits between them, answers who looks, and ends or is given up cleanly."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from engine.client.pulse import BUSY_S, HANGS_S, Pulse
from engine.spec.cache import cache_preset
from engine.wire.commands import (
    Cancel,
    Force,
    GoTo,
    NextPhase,
    Pause,
    RemoveSequence,
    Run,
    SetCache,
    Step,
    SubmitPrompt,
    TakePicture,
    Tokenize,
    Watch,
    Watched,
)
from engine.wire.events import Done, Failed, StateChanged, Tokenized, WentTo
from engine.wire.exporting import Export
from engine.wire.measurements import CheckParity, WhatIf
from engine.wire.message import Command
from engine.wire.pictures import AttentionPicture, AttentionRequest, RowPicture, RowRequest, WallPicture, WallRequest
from engine.wire.records import StepRecord
from engine.wire.status import Chosen, LayerDone, PhaseReached, Scheduled, SuspendedStep, Written
from tests.engine.loop.conftest import driver  # noqa: F401  # a fixture
from tests.engine.loop.driver import PATIENCE_S, Driver, prompt
from tests.engine.session.sessions import facts, same, tensors


@pytest.fixture
def stepped(driver: Driver) -> Driver:  # noqa: F811
    """After a prompt of nine tokens and two steps."""
    driver.send(prompt(9), Step(3))
    driver.wait_for(StepRecord, 3)
    driver.rest()
    driver.forget()
    return driver


def on(driver: Driver, count: int = 1) -> PhaseReached:  # noqa: F811
    """So many phases on; where it stands then."""
    before = len(driver.of(PhaseReached))
    for number in range(count):
        driver.send(NextPhase(id=100 + number))
        driver.wait_for(PhaseReached, before + number + 1)
        driver.rest()  # its pictures are there: one that is not fetched gives way to the next
    return driver.of(PhaseReached)[-1]


def where(driver: Driver) -> SuspendedStep | None:  # noqa: F811
    return driver.rest().suspended


def test_it_waits_at_every_phase_and_says_where_it_stands(stepped: Driver) -> None:
    kinds, words = [], []
    for _ in range(5):
        kinds.append(type(on(stepped).phase))
        suspended = where(stepped)
        words.append("" if suspended is None else suspended.words)
    assert kinds == [Scheduled, LayerDone, LayerDone, Chosen, Written]
    assert words == [
        "step 3: scheduled", "step 3: layer 0 done, 1 of 2", "step 3: layer 1 done, 2 of 2", "step 3: chosen", "",
    ]  # fmt: skip
    assert [record.step for record in stepped.of(StepRecord)] == [3]
    assert not stepped.status.running
    assert [event.reply_to for event in stepped.of(PhaseReached)] == [100] * 5
    assert stepped.last_words() == [Done(reply_to=100)] * 5
    assert type(on(stepped).phase) is Scheduled, "and then the next step begins"
    assert where(stepped) == SuspendedStep(4, 2, (0,), (13,))


def test_who_looks_is_answered_from_the_step_as_far_as_it_has_come(stepped: Driver) -> None:
    on(stepped, 2)
    stepped.send(TakePicture(RowRequest(0, 12, 11)), Tokenize("", id=9), Pause())
    row = stepped.wait_for(RowPicture)
    assert row.layers == (0,)
    assert "after layer 0" in row.note
    on(stepped)
    stepped.send(TakePicture(RowRequest(0, 12, 11)))
    assert stepped.wait_for(RowPicture, 2).layers == (0, 1)
    assert where(stepped) is not None
    assert any(answer.reply_to == 9 for answer in stepped.of(Tokenized))


def test_watched_pictures_follow_every_phase_and_what_is_written_in_the_end(stepped: Driver) -> None:
    wall = Watched(WallRequest(0, 0, 0, "keys", False, 200, 8), id=51)
    row = Watched(AttentionRequest(0, 0, 1, 200), id=52)
    stepped.send(Watch((wall, row)))
    stepped.wait_for(AttentionPicture)
    stepped.rest()
    on(stepped, 5)
    walls = stepped.of(WallPicture)
    counts = [(wall.num_tokens, wall.absent[:, 0, -1].tolist() if wall.absent is not None else None) for wall in walls]
    assert counts == [(11, None), (12, [1, 1]), (12, [0, 1]), (12, [0, 0]), (12, [0, 0]), (12, None)]
    rows = stepped.of(AttentionPicture)
    assert [piece.request.step for piece in rows] == [2, 3, 3, 3, 3, 3]
    assert [piece.weights.shape[-1] for piece in rows] == [11, 0, 0, 12, 12, 12]
    assert np.allclose(rows[-1].weights, rows[-2].weights, atol=1e-7)
    stepped.send(Step())
    stepped.wait_for(StepRecord, 2)
    stepped.rest()
    assert stepped.session.last_step == 4


def test_given_up_pictures_are_those_of_before_at_once(stepped: Driver) -> None:
    stepped.send(Watch((Watched(WallRequest(0, 0, 0, "keys", False, 200, 8), id=51),)))
    first = stepped.wait_for(WallPicture)
    on(stepped, 2)
    stepped.send(Cancel())
    stepped.rest()
    last = stepped.of(WallPicture)[-1]
    assert (last.num_tokens, last.absent, where(stepped)) == (11, None, None)
    assert np.array_equal(last.low, first.low, equal_nan=True)


@pytest.mark.parametrize("command", [Step(), Run(1), Step(3), Run(3)])
def test_a_step_or_a_run_finishes_it(stepped: Driver, command: Step | Run) -> None:
    on(stepped, 2)
    stepped.send(command)
    stepped.wait_for(StepRecord, command.num_steps or 0)
    status = stepped.rest()
    assert (status.step, status.suspended) == (2 + (command.num_steps or 0), None)
    assert [type(event.phase) for event in stepped.of(PhaseReached)[2:]] == [LayerDone, Chosen, Written]


@pytest.mark.parametrize(
    "command",
    [
        Cancel(),
        GoTo(1),
        Force(0, (7,)),
        SetCache(cache_preset("paged").spec),
        RemoveSequence(0),
        SubmitPrompt(prompt(4).prompt, num_steps=1),
    ],
    ids=lambda command: type(command).__name__,
)
@pytest.mark.parametrize("phases", [1, 2, 4])
def test_anything_else_gives_it_up_and_is_done(stepped: Driver, command: Command, phases: int) -> None:
    on(stepped, phases)
    stepped.send(command)
    assert where(stepped) is None
    assert not stepped.of(Failed)
    session = stepped.session
    match command:
        case Cancel():
            assert (session.last_step, session.sequence(0).num_tokens) == (2, 11)
        case GoTo():
            assert stepped.wait_for(WentTo).step == 1
            assert session.sequence(0).num_tokens == 10
        case Force():
            assert (session.sequence(0).sampled, session.last_step) == (7, 2)
        case SetCache():
            assert session.cache.layout == "paged"
            assert session.cache_of(0).num_tokens == 11
        case RemoveSequence():
            assert session.sequences == ()
        case SubmitPrompt():
            stepped.wait_for(StepRecord)
            assert session.last_step == 0


def test_given_up_it_leaves_every_bit_as_it_was(stepped: Driver) -> None:
    session = stepped.session
    before, held = facts(session), tensors(session)
    for phases in (1, 2, 3, 4):
        on(stepped, phases)
        stepped.send(Cancel())
        stepped.rest()
        assert facts(session) == before
        assert same(tensors(session), held)


@pytest.mark.parametrize(
    "command",
    [WhatIf(0, cache_preset("int8").spec), CheckParity(0), Export(Path("/no/such/file"), 0)],
    ids=lambda command: type(command).__name__,
)
def test_what_measures_is_refused_and_loses_nothing(stepped: Driver, command: Command) -> None:
    on(stepped, 2)
    stepped.send(command)
    failure = stepped.wait_for(Failed)
    assert failure.message == (
        "Step 3: layer 0 done, 1 of 2. Finish this step, or give it up, before anything is measured or written."
    )
    assert where(stepped) == SuspendedStep(3, 2, (0,), (12,), 0)
    assert type(on(stepped, 3).phase) is Written


def test_a_prompt_is_read_in_phases_and_a_step_reads_the_rest_of_it(driver: Driver) -> None:  # noqa: F811
    driver.send(prompt(9))
    driver.rest()
    first = on(driver).phase
    assert isinstance(first, Scheduled)
    assert (first.sequences[0].phase, len(first.sequences[0].token_ids)) == ("prefill", 9)
    on(driver)
    driver.send(TakePicture(WallRequest(0, 9, 9, "values", False, 50, 8)))
    assert driver.wait_for(WallPicture).layers == (0,), "the others have nothing at all yet"
    driver.send(Step())
    driver.wait_for(StepRecord)
    assert driver.rest().sequences[0].num_tokens == 9


def test_with_nothing_to_do_it_is_refused(driver: Driver) -> None:  # noqa: F811
    driver.send(NextPhase(id=4))
    failure = driver.wait_for(Failed)
    assert (failure.message, failure.reply_to) == ("There is nothing to do: send a prompt first.", 4)
    assert where(driver) is None


def test_steps_that_are_none_are_refused_and_it_waits_on(stepped: Driver) -> None:
    on(stepped)
    stepped.send(Step(0))
    assert "give 1 or more" in stepped.wait_for(Failed).message
    assert where(stepped) == SuspendedStep(3, 2, (0,), (12,))


def test_a_wait_of_minutes_is_neither_busy_nor_a_hang(stepped: Driver) -> None:
    on(stepped, 2)
    activity = stepped.engine.activity
    while activity.what:
        time.sleep(0.002)
    now = [0.0]
    pulse = Pulse(activity, clock=lambda: now[0])
    said = []
    for _ in range(int(BUSY_S + HANGS_S) * 60):
        now[0] += 1.0
        said += pulse.beat()
    assert said == []


def test_it_begins_while_a_run_goes_on_which_ends_there(stepped: Driver) -> None:
    stepped.send(Run(), NextPhase())
    stepped.wait_for(PhaseReached)
    status = stepped.rest()
    assert status.suspended is not None
    assert not status.running
    steps = len(stepped.of(StepRecord))
    time.sleep(0.02)
    stepped.rest()
    assert len(stepped.of(StepRecord)) == steps


def test_closing_while_it_waits_ends_the_engine(stepped: Driver) -> None:
    on(stepped, 2)
    assert stepped.loop.close(PATIENCE_S)


def test_every_state_that_is_told_says_where_it_is(stepped: Driver) -> None:
    on(stepped, 5)
    told = [event.status.suspended.words for event in stepped.of(StateChanged) if event.status.suspended is not None]
    assert list(dict.fromkeys(told)) == [
        "step 3: scheduled", "step 3: layer 0 done, 1 of 2", "step 3: layer 1 done, 2 of 2", "step 3: chosen",
    ]  # fmt: skip
