"""A run whose steps are read late tells the same records in the same order, and all of them before anything else."""

from __future__ import annotations

import pytest
import torch

from engine.look.ring import ObservationRing
from engine.spec.stops import Stop
from engine.wire.commands import GoTo, Pause, Run, SetCapture, Step, Watch, Watched
from engine.wire.events import Failed, WentTo
from engine.wire.records import StepRecord
from engine.wire.requests import WallRequest
from engine.wire.slices import CellUpdate, WallSlice
from engine.wire.stopping import SetStops
from tests.engine.loop.driver import Driver, prompt


@pytest.fixture
def late(driver: Driver) -> Driver:
    session = driver.session
    session.ring = session._observer.ring = ObservationRing(torch.device("cpu"), late_steps=2)
    driver.send(prompt(6), Step())
    driver.rest()
    return driver


def test_a_run_tells_every_step_in_order_and_rests_with_nothing_open(late: Driver) -> None:
    late.send(Watch((Watched(WallRequest(0, 6, 0, "keys", False, 64, 64)),)), Run(30))
    late.wait_for(StepRecord, 31)
    assert late.rest().step == 30
    records = late.of(StepRecord)
    assert [record.step for record in records] == list(range(31))
    assert all(record.sequences[0].rows is not None and record.checksums for record in records)
    assert not late.session.has_open_records
    told, shown = set(), []
    for event in late.events:
        if isinstance(event, StepRecord):
            told.add(event.sequences[0].num_tokens)
        elif isinstance(event, WallSlice | CellUpdate):
            shown.append(event.num_tokens if isinstance(event, WallSlice) else event.piece.num_tokens)
            assert shown[-1] in told, "a picture of a step comes after the record of it"
    assert shown[-1] == 36


def test_a_stop_is_asked_at_once_and_a_command_finds_all_records_told(late: Driver) -> None:
    late.send(SetStops((Stop(1, "step == 9"),)), Run())
    late.wait(lambda: late.status.halted_by)
    assert [record.step for record in late.of(StepRecord)] == list(range(10)), "not a step further"
    late.send(SetStops(()), Run(), Pause(), GoTo(4))
    late.wait_for(WentTo)
    kinds = [type(event) for event in late.events if isinstance(event, StepRecord | WentTo)]
    assert kinds.index(WentTo) == len(kinds) - 1


def test_a_failure_comes_after_the_records_before_it(late: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.session import stepper

    original, calls = stepper.sample, [0]

    def sometimes(*args: object) -> object:
        calls[0] += 1
        return original(*args) if calls[0] < 7 else 1 / 0  # type: ignore[arg-type]

    monkeypatch.setattr(stepper, "sample", sometimes)
    late.send(Run(20))
    late.wait_for(Failed)
    assert [record.step for record in late.of(StepRecord)] == list(range(7))
    monkeypatch.undo()
    late.send(Step())
    late.wait_for(StepRecord, 8)
    assert late.rest().step == 7


def test_the_level_is_chosen_told_with_its_cost_and_refused_by_name(late: Driver) -> None:
    late.send(SetCapture("statistics"), Step(3))
    state = late.rest().capture
    assert (state.level, state.by_layer) == ("statistics", False)
    assert [name for name, _ in state.costs_ms] == ["statistics"]
    assert late.of(StepRecord)[-1].sequences[0].attention is None
    late.send(SetCapture("much"))  # type: ignore[arg-type]
    assert "choose one of off, statistics, rows, everything" in late.wait_for(Failed).message
    assert late.rest().capture.level == "statistics"
