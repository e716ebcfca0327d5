"""A run whose steps are read late tells the same records in the same order, and all of them before anything else."""

from __future__ import annotations

import pytest
import torch

from engine.look.transfer import ObservationRing, PlainSlot
from engine.spec.condition import Breakpoint
from engine.wire.breakpoints import SetBreakpoints
from engine.wire.commands import GoTo, Pause, Run, SetCapture, Step, Watch, Watched
from engine.wire.events import EngineLost, Failed, WentTo
from engine.wire.pictures import CellUpdate, WallPicture, WallRequest
from engine.wire.records import StepRecord
from tests.engine.loop.driver import Driver, prompt


@pytest.fixture
def late(driver: Driver) -> Driver:
    session = driver.session
    session.observer.ring = ObservationRing(torch.device("cpu"), late_steps=2)
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
    assert not late.session.observer.num_open
    told, shown = set(), []
    for event in late.events:
        if isinstance(event, StepRecord):
            told.add(event.sequences[0].num_tokens)
        elif isinstance(event, WallPicture | CellUpdate):
            shown.append(event.num_tokens if isinstance(event, WallPicture) else event.picture.num_tokens)
            assert shown[-1] in told, "a picture of a step comes after the record of it"
    assert shown[-1] == 36


def test_a_stop_is_asked_at_once_and_a_command_finds_all_records_told(late: Driver) -> None:
    late.send(SetBreakpoints((Breakpoint(1, "step == 9"),)), Run())
    late.wait(lambda: late.status.halted_by)
    assert [record.step for record in late.of(StepRecord)] == list(range(10)), "not a step further"
    late.send(SetBreakpoints(()), Run(), Pause(), GoTo(4))
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


@pytest.mark.parametrize("fails", ["the step before it is read", "reading alone"])
def test_a_device_that_fails_under_records_that_are_on_their_way_is_lost(
    late: Driver, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    from engine.session import stepper

    error = RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
    original, read, calls = stepper.sample, PlainSlot.bytes, [0]

    def sample(*args: object) -> object:
        calls[0] += 1
        if calls[0] >= 5 and fails != "reading alone":
            raise error
        return original(*args)  # type: ignore[arg-type]

    def fetched(slot: PlainSlot) -> object:
        if calls[0] >= 5:
            raise error
        return read(slot)

    monkeypatch.setattr(stepper, "sample", sample)
    monkeypatch.setattr(PlainSlot, "bytes", fetched)
    late.send(Run(30))
    lost = late.wait_for(EngineLost)
    assert lost.cause == "cpu does not work any more (CUDA error: an illegal memory access was encountered)"
    assert not late.of(Failed)
    late.send(Step(id=6))
    assert late.wait_for(Failed).reply_to == 6


def test_a_step_that_cannot_be_read_leaves_no_hole_and_is_told_as_one_that_is_done(
    late: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, calls = PlainSlot.bytes, [0]

    def fetched(slot: PlainSlot) -> object:
        calls[0] += 1
        if calls[0] == 3:
            raise MemoryError("no room")
        return read(slot)

    monkeypatch.setattr(PlainSlot, "bytes", fetched)
    late.send(Run(12, id=8))
    failed = late.wait_for(Failed)
    now = late.rest()
    records = late.of(StepRecord)
    assert [record.step for record in records] == list(range(len(records)))
    assert now.step == records[-1].step < 12, "the run has ended, and all that it did was told"
    assert [record.step for record in records if not record.checksums] == [3]
    assert (records[3].sequences[0].rows, records[3].sequences[0].num_tokens) == (None, 9)
    assert failed.reply_to == 8
    assert failed.message == (
        "What was measured of step 3 could not be read (MemoryError: no room); the step is done, and its record lacks "
        "it: measure less of each step, or free memory."
    )
    late.send(Run(3))
    late.wait_for(StepRecord, len(records) + 3)
    assert late.rest().step == records[-1].step + 3
    assert len(late.of(Failed)) == 1
