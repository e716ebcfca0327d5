"""Commands in order: the newest picture wins, a cancel ends what was asked before it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from msgspec import structs

from engine.loop.inbox import Activity, Inbox, StepsToDo
from engine.model.runners.decoder import Block
from engine.session.chunks import PrefillPlan
from engine.session.session import Session
from engine.spec.sampling import Prompt
from engine.wire.commands import Cancel, Force, Pause, RemoveSequence, Run, SetPace, Shutdown, Step, TakePicture
from engine.wire.events import Cancelled, Done, Event, Failed, Submitted
from engine.wire.measurements import CheckParity, ParityReport
from engine.wire.message import Command
from engine.wire.pictures import RowPicture, RowRequest, WallPicture, WallRequest
from engine.wire.records import StepRecord
from tests.engine.loop.driver import GROWING, PATIENCE_S, Driver, prompt
from tests.engine.tiny import prompt_ids


def test_the_newest_slice_wins(driver: Driver) -> None:
    driver.send(prompt(6), Step())
    driver.wait_for(StepRecord)
    driver.rest()
    driver.forget()
    gate = threading.Event()
    original = Session.force

    def wait_then_force(self: Session, seq_id: int, token_ids: tuple[int, ...]) -> None:
        gate.wait(PATIENCE_S)
        original(self, seq_id, token_ids)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "force", wait_then_force)
        driver.send(Force(0, (5,)))  # holds the thread while the requests pile up
        for number in range(50):
            driver.send(TakePicture(WallRequest(0, 6, 6, "keys", False, 8, 8), id=number))
        driver.send(TakePicture(RowRequest(0, 6, 2), id=99))
        gate.set()
        driver.wait_for(RowPicture)
        driver.rest()
    assert [w.reply_to for w in driver.of(WallPicture)] == [49]
    assert [r.reply_to for r in driver.of(RowPicture)] == [99]
    assert [c.reply_to for c in driver.of(Cancelled)] == [*range(49)]


def test_a_cancel_that_ended_a_measurement_is_used_up(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was going on goes on behind it."""

    def endless(*args: object) -> Iterator[tuple[int, int]]:
        for done in range(1 << 30):
            if done == 3:
                driver.loop.send(Cancel())
            yield done, 1 << 30

    monkeypatch.setattr("engine.analysis.parity.live_parity", endless)
    driver.send(prompt(6), Run(40), CheckParity(0, id=3))
    driver.wait(lambda: [r for r in driver.of(StepRecord) if r.step == 39])
    driver.rest()
    assert len(driver.of(StepRecord)) == 40
    assert not driver.of(ParityReport)
    assert driver.last_words() == [Cancelled(reply_to=3)]
    assert not driver.of(Failed)


def test_a_cancel_takes_back_what_was_to_run_before_it(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run and a step that were asked for during a measurement, before its cancel; the step after it is done."""

    def endless(*args: object) -> Iterator[tuple[int, int]]:
        for done in range(1 << 30):
            if done == 3:
                driver.send(Run(30), Step(5), Cancel(), Step(2))
            yield done, 1 << 30

    monkeypatch.setattr("engine.analysis.parity.live_parity", endless)
    driver.send(prompt(6), Step(), CheckParity(0))
    driver.wait_for(StepRecord, 3)
    driver.rest()
    assert [r.step for r in driver.of(StepRecord)] == [0, 1, 2]


def test_a_prompt_that_a_cancel_takes_back_is_answered(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sent it waits for its sequence."""

    def endless(*args: object) -> Iterator[tuple[int, int]]:
        for done in range(1 << 30):
            if done == 3:
                driver.send(structs.replace(prompt(7), id=71), Cancel(), structs.replace(prompt(8), id=72))
            yield done, 1 << 30

    monkeypatch.setattr("engine.analysis.parity.live_parity", endless)
    driver.send(prompt(6), Step(), CheckParity(0))
    driver.wait(lambda: [one for one in driver.of(Submitted) if one.reply_to == 72])
    assert [failed.reply_to for failed in driver.of(Failed)] == [71]
    assert len(driver.of(Submitted)) == 2


def test_cancel_ends_a_prefill_within_a_chunk_and_a_step_takes_it_up_again(slow: Driver) -> None:
    slow.send(prompt(8000), Run())
    slow.wait_for(StepRecord, 2)
    slow.send(Cancel())
    status = slow.rest()
    done = len(slow.of(StepRecord))
    assert not status.running
    assert status.sequences[0].phase == "prefill"
    assert done < 20
    assert not slow.of(Failed)
    time.sleep(0.1)
    slow.rest()
    assert len(slow.of(StepRecord)) == done, "it really rests"
    slow.send(Run())
    slow.wait_for(StepRecord, done + 1)
    slow.send(Pause())
    slow.rest()
    records = slow.of(StepRecord)
    assert records[done].sequences[0].first_position == records[done - 1].sequences[0].num_tokens


@pytest.mark.parametrize("command", [Cancel(), RemoveSequence(1)], ids=["cancel", "another sequence is removed"])
def test_a_cancel_in_mid_chunk_leaves_the_session_where_it_was_before_the_chunk(
    slow: Driver, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """The third layer of the second chunk is where it comes; what was there is there, and the rest follows on it."""
    original, layers = Block.__call__, [0]
    states: list[tuple[Any, ...]] = []

    def state(cache: Any) -> tuple[Any, ...]:
        held = [(rows.keys.clone(), rows.values.clone()) for i in range(8) if (rows := cache.rows(i)) is not None]
        return cache.num_tokens, held

    def call(self: Block, *args: Any) -> Any:
        layers[0] += 1
        if layers[0] == 8 + 1:
            states.append(state(live.cache))
        if layers[0] == 8 + 3:
            slow.loop.send(command)
        return original(self, *args)

    slow.send(prompt(600), structs.replace(prompt(20), alone=False))
    slow.rest()
    session = slow.session
    live = session.live.get(0)
    session.scheduler.plan = PrefillPlan(256)
    monkeypatch.setattr(Block, "__call__", call)
    slow.send(Step())
    if isinstance(command, Cancel):
        status = slow.rest()
        assert [r.sequences[0].num_tokens for r in slow.of(StepRecord)] == [256]
        assert layers[0] == 8 + 3, "no layer more"
        assert (status.step, status.sequences[0].num_tokens, status.sequences[0].phase) == (0, 256, "prefill")
        (count, held), (now, rows) = states[0], state(live.cache)
        assert count == now == 256
        assert all(
            torch.equal(a, b) for old, new in zip(held, rows, strict=True) for a, b in zip(old, new, strict=True)
        )
        slow.send(Step())
    slow.wait(lambda: [r for r in slow.of(StepRecord) if r.sequences[0].num_tokens == 600])
    assert layers[0] == 3 * 8 + 3, "the chunk was begun anew"
    assert [r.sequences[0].num_tokens for r in slow.of(StepRecord)] == [256, 512, 600]
    assert len(slow.rest().sequences) == (2 if isinstance(command, Cancel) else 1)
    assert not slow.of(Failed)
    twin = Session(session.model, GROWING, prefill_chunk=256)
    twin.submit(Prompt(token_ids=prompt_ids(600)))
    for _ in range(3):
        twin.step()
    mine, its = session.logits(0), twin.logits(0)
    assert mine is not None
    assert its is not None
    assert torch.equal(mine, its)


def test_a_cancel_uses_up_what_was_to_run_before_the_last_of_them_and_nothing_else() -> None:
    said: list[Event] = []
    inbox = Inbox(Activity(), said.append)
    early, late, force = Run(id=3), Step(2), Force(0, (5,))
    for command in (Step(id=1), Cancel(id=2), early, force, Cancel(id=4), late):
        inbox.put(command)
    assert inbox.take_cancel()
    assert said == [Cancelled(reply_to=1), Done(reply_to=2), Cancelled(reply_to=3), Done(reply_to=4)]
    assert not inbox.take_cancel()
    assert [inbox.take(), inbox.take(), inbox.take()] == [force, late, None]
    inbox.put(Shutdown())
    assert inbox.take_cancel()
    assert isinstance(inbox.take(), Shutdown)


def test_the_same_pace_once_more_hurries_no_step() -> None:
    steps = StepsToDo()
    steps.set_pace(SetPace(1e-3, None))
    steps.run(Run())
    steps.done(is_unit=True)
    steps.set_pace(SetPace(1e-3, None))
    assert steps.wait_s > 500
    steps.set_pace(SetPace(2e-3, None))
    assert steps.wait_s == 0
