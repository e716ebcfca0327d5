"""A comparison in the loop: what the window hears of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.analysis.comparison import Comparison, ComparisonFollower, LiveRun
from engine.look.finer import Finer
from engine.spec.cache import cache_named, cache_preset, tuned
from engine.spec.edit import Rows, Zero
from engine.wire.commands import (
    Cancel,
    DeleteBranch,
    EndComparison,
    Force,
    GoTo,
    MakeEdit,
    Pause,
    RemoveSequence,
    SetCache,
    StartComparison,
    Step,
    TakePicture,
    Tokenize,
)
from engine.wire.comparison import (
    ComparedStep,
    ComparisonEnded,
    ComparisonScanned,
    ComparisonStarted,
    OtherRun,
    OtherStep,
)
from engine.wire.encoding import encode
from engine.wire.events import Failed, StateChanged, WentTo
from engine.wire.message import Command
from engine.wire.pictures import HeadPicture, HeadRequest, Side, WallPicture, WallRequest
from engine.wire.records import StepRecord
from tests.engine.loop.driver import Driver, prompt

SIDES: tuple[Side, ...] = ("a", "b", "difference")
INT8 = OtherRun(cache_named("int8"))


def begun(driver: Driver, against: OtherRun | OtherStep = INT8) -> ComparisonStarted:
    driver.send(prompt(12), Step(4))
    driver.wait_for(StepRecord, 4)
    driver.send(StartComparison(0, against))
    started = driver.wait_for(ComparisonStarted)
    driver.rest()
    return started


def test_over_a_slow_line_both_sides_and_their_difference_come_in_the_same_few_cells_first(driver: Driver) -> None:
    begun(driver)
    finer = driver.engine.reporter.finer = Finer(9000)
    request = WallRequest(0, 16, 16, "keys", False, 16, 16)
    driver.forget()
    driver.send(*(TakePicture(request, side, id=70 + number) for number, side in enumerate(SIDES)))
    driver.rest()
    found = driver.of(WallPicture)
    assert [each.reply_to for each in found] == [70, 71, 72]
    assert len({each.request for each in found}) == 1
    assert found[0].request.max_columns < 16
    assert sum(len(frame) for each in found for frame in encode(each)) <= 9000
    for number in range(3):
        whole = driver.wait(lambda: finer.oldest)
        assert isinstance(whole, WallPicture)
        assert (whole.request, whole.reply_to) == (request, 70 + number)
        finer.sent(whole)
    assert finer.oldest is None


def test_what_was_stepped_is_compared_at_once_and_every_step_after_it(driver: Driver) -> None:
    started = begun(driver)
    assert [step.num_tokens for step in started.steps] == [12, 13, 14, 15]
    assert (started.a.is_lossy, started.b.is_lossy, started.b.moves) == (False, True, True)
    assert driver.wait_for(ComparisonScanned).first is not None
    driver.send(Step(2))
    driver.wait_for(ComparedStep, 2)
    driver.rest()
    assert [step.num_tokens for step in driver.of(ComparedStep)] == [16, 17]
    assert driver.wait_for(ComparisonScanned, 2).num_tokens == 17


def test_an_edit_by_hand_is_told_of_the_side_that_has_it(driver: Driver) -> None:
    begun(driver, OtherRun(cache_named("growing")))
    driver.send(MakeEdit(Zero(0, Rows(5, 6))))
    driver.wait_for(ComparisonStarted, 2)
    driver.send(Step(2))
    driver.wait_for(ComparedStep, 2)
    driver.rest()
    before, after = driver.of(ComparisonStarted)
    assert (before.a.edited_from, after.a.edited_from, after.b.edited_from) == (None, 5, None)
    assert [step.is_beyond_rounding for step in driver.of(ComparedStep)] == [True, True]
    scanned = driver.of(ComparisonScanned)
    while not scanned or scanned[-1].num_tokens < driver.of(ComparedStep)[-1].num_tokens:
        driver.wait_for(ComparisonScanned, len(scanned) + 1)
        scanned = driver.of(ComparisonScanned)
    assert scanned[-1].first is not None
    assert scanned[-1].first.position == 5


def test_both_sides_and_their_difference_are_drawn(driver: Driver) -> None:
    begun(driver)
    request = HeadRequest(0, 15, "keys", 0, 0, 0, 15, 100)
    driver.send(TakePicture(request, side="a"), TakePicture(request, side="b"), TakePicture(request, side="difference"))
    driver.wait_for(HeadPicture, 3)
    a, b, difference = driver.of(HeadPicture)
    assert (a.low - b.low == difference.low).all()
    assert (difference.low != 0).any()


def test_going_back_takes_the_comparisons_back(driver: Driver) -> None:
    begun(driver)
    driver.send(GoTo(1))
    driver.wait_for(WentTo)
    again = driver.wait_for(ComparisonStarted, 2)
    assert [step.num_tokens for step in again.steps] == [12, 13]
    driver.send(Force(0, (5,)), Step())
    assert driver.wait_for(ComparedStep).num_tokens == 14


def test_another_mode_of_the_run_is_told_as_side_a(driver: Driver) -> None:
    begun(driver)
    driver.send(SetCache(cache_preset("paged").spec))
    assert driver.wait_for(ComparisonStarted, 2).a.cache == "Paged"


def test_it_ends_with_its_sequence_and_when_asked(driver: Driver) -> None:
    begun(driver)
    driver.send(RemoveSequence(0))
    assert driver.wait_for(ComparisonEnded).reason == "its sequence is gone"
    driver.send(prompt(12), Step())
    driver.wait_for(StepRecord, 5)
    driver.send(StartComparison(1, INT8))
    assert driver.wait_for(ComparisonStarted, 2).seq_id == 1
    driver.send(EndComparison())
    assert driver.wait_for(ComparisonEnded, 2).reason == ""
    driver.send(TakePicture(HeadRequest(1, 12, "keys", 0, 0, 0, 12, 100), side="b"))
    assert "start a comparison" in driver.wait_for(Failed).message


def test_pictures_are_of_the_sequence_that_is_compared_whatever_is_asked(driver: Driver) -> None:
    driver.send(prompt(10))
    driver.rest()
    driver.send(prompt(12), Step())
    driver.wait_for(StepRecord)
    driver.send(StartComparison(1, INT8))
    assert driver.wait_for(ComparisonStarted).seq_id == 1
    for seq_id in (0, 1):
        driver.send(TakePicture(HeadRequest(seq_id, 11, "keys", 0, 0, 0, 11, 100), side="a"))
        driver.wait_for(HeadPicture, seq_id + 1)
    one, other = driver.of(HeadPicture)
    assert one.request.seq_id == 0
    assert (one.low == other.low).all()


def test_rows_that_cannot_be_compared_end_it_and_not_the_engine(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("too many rows")

    monkeypatch.setattr("engine.analysis.comparison.first_difference", fail)
    begun(driver)
    assert driver.wait_for(ComparisonEnded).reason == "its rows cannot be compared"
    (failed,) = driver.of(Failed)
    assert failed.reply_to is None
    driver.send(Step())
    driver.wait_for(StepRecord, 5)


def test_what_was_compared_in_another_mode_is_not_told_of_this_one(driver: Driver) -> None:
    """Steps of a lossy mode would stand as faults beside two exact sides."""
    driver.send(SetCache(INT8.cache), prompt(12), Step(4))
    driver.wait_for(StepRecord, 4)
    driver.send(StartComparison(0, OtherRun(cache_named("dynamic"))))
    assert all(step.is_beyond_rounding for step in driver.wait_for(ComparisonStarted).steps)
    driver.wait_for(ComparisonScanned)
    driver.send(SetCache(cache_named("dynamic")))
    again = driver.wait_for(ComparisonStarted, 2)
    assert not again.a.is_lossy
    assert [(step.num_tokens, step.is_beyond_rounding, step.kl) for step in again.steps] == [(15, None, None)]
    driver.send(Step())
    assert driver.wait_for(ComparedStep).num_tokens == 16


def test_a_step_that_is_undone_is_no_other_side(driver: Driver) -> None:
    begun(driver, OtherStep(2))
    driver.send(GoTo(2))
    driver.wait_for(WentTo)
    driver.rest()
    assert not driver.of(ComparisonEnded)
    driver.send(GoTo(1))
    assert driver.wait_for(ComparisonEnded).reason == "step 2 is not before the live one any more"


def test_a_branch_that_is_deleted_is_no_other_side(driver: Driver) -> None:
    """At once, not with the next step only."""
    driver.send(prompt(12), Step(4))
    driver.wait_for(StepRecord, 4)
    driver.send(GoTo(1), Step())
    driver.wait_for(StepRecord, 5)
    driver.send(StartComparison(0, OtherStep(2)))
    driver.wait_for(ComparisonStarted)
    driver.send(DeleteBranch(2))
    assert driver.wait_for(ComparisonEnded).reason == "step 2 was deleted"


def test_two_steps_stay_compared_wherever_the_live_one_is(driver: Driver) -> None:
    begun(driver, OtherStep(1, 3))
    driver.send(Step())
    driver.wait_for(StepRecord, 5)
    driver.send(GoTo(2))
    driver.wait_for(WentTo)
    driver.send(TakePicture(WallRequest(0, 13, 13, "keys", False, 16, 16), "difference", id=70))
    driver.wait_for(WallPicture)
    driver.rest()
    assert not driver.of(ComparisonEnded)
    driver.send(GoTo(0), DeleteBranch(1))
    assert driver.wait_for(ComparisonEnded).reason == "step 1 was deleted"


def test_of_an_earlier_step_only_the_rows_are_compared(driver: Driver) -> None:
    """Its numbers and those of the same step of side A are one and the same."""
    started = begun(driver, OtherStep(2))
    assert {(step.kl, step.is_beyond_rounding) for step in started.steps} == {(None, None)}
    assert driver.wait_for(ComparisonScanned).num_tokens == 14


def far_behind(driver: Driver, monkeypatch: pytest.MonkeyPatch, *then: Command) -> list[int]:
    """The other run has to read all 48 steps again, and `then` comes after its fifth; what it read until then."""
    driver.send(prompt(12), Step(48))
    driver.wait_for(StepRecord, 48)
    driver.send(StartComparison(0, INT8))
    driver.wait_for(ComparisonStarted)
    driver.wait_for(ComparisonScanned)
    read: list[int] = []
    note = LiveRun.note

    def noted(run: LiveRun, num_tokens: int, took_ms: float, num_bytes: int) -> None:
        note(run, num_tokens, took_ms, num_bytes)
        read.append(num_tokens)
        if len(read) == 5:
            driver.send(*then)

    monkeypatch.setattr(LiveRun, "note", noted)
    monkeypatch.setattr(ComparisonFollower, "_go_back_to", lambda follower, *_: read or follower._restart())
    driver.send(Step())
    return read


def test_a_run_that_catches_up_can_be_stopped(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    read = far_behind(driver, monkeypatch, Cancel())
    assert driver.wait_for(ComparisonEnded).reason == "it was stopped"
    assert len(read) == 5


def test_a_pause_is_of_the_run_and_not_of_the_other_one_that_catches_up(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = far_behind(driver, monkeypatch, Pause())
    driver.wait(lambda: len(read) > 40)
    driver.rest()
    assert not driver.of(ComparisonEnded)


def test_a_run_that_catches_up_can_be_ended(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    read = far_behind(driver, monkeypatch, EndComparison())
    assert driver.wait_for(ComparisonEnded).reason == ""
    assert len(read) == 5
    assert any(e.status.work and "catches up" in e.status.work.label for e in driver.of(StateChanged))
    assert driver.rest().work is None


def test_a_run_that_catches_up_goes_on_after_what_came_between(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    read = far_behind(driver, monkeypatch, Tokenize("", id=77))
    assert driver.wait_for(ComparisonScanned, 2).num_tokens == 60
    assert read == [*range(12, 61)]
    assert driver.of(ComparedStep)[-1].num_tokens == 60


def test_a_start_that_is_cancelled_lets_the_other_side_go(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.send(prompt(12), Step(4))
    driver.wait_for(StepRecord, 4)
    closed: list[Comparison] = []
    monkeypatch.setattr(Comparison, "close", lambda comparison: closed.append(comparison))
    monkeypatch.setattr(LiveRun, "note", lambda *_: driver.send(Cancel()))
    driver.send(StartComparison(0, INT8))
    driver.wait(lambda: closed)
    driver.rest()
    assert not driver.of(ComparisonStarted)


def test_a_step_of_the_run_itself_is_the_other_side(driver: Driver) -> None:
    started = begun(driver, OtherStep(1))
    assert started.b.name == "step 1"
    assert not started.b.moves
    assert [step.num_tokens for step in started.steps] == [12, 13]


def test_another_run_that_fails_ends_and_answers_no_command(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a panel whose question came last would say it for its own."""
    begun(driver)

    def fail(*_: object) -> Iterator[int]:
        raise ZeroDivisionError("of the other run")
        yield 0

    monkeypatch.setattr(ComparisonFollower, "follow", fail)
    driver.send(Step())
    assert driver.wait_for(ComparisonEnded).reason == "its other run failed"
    (failed,) = driver.of(Failed)
    assert (failed.reply_to, "of the other run" in failed.message) == (None, True)
    assert driver.rest().step == 4


def test_beside_an_earlier_step_the_rows_of_side_a_are_those_of_now(driver: Driver) -> None:
    """Keys that were exact then are coded by now: both pictures and their difference say so alike."""
    driver.send(SetCache(tuned(cache_named("kivi-4"), group=8, residual=8)), prompt(12), Step(8))
    driver.wait_for(StepRecord, 8)
    driver.send(StartComparison(0, OtherStep(2)))
    driver.wait_for(ComparisonStarted)
    for request in (HeadRequest(0, 14, "keys", 0, 0, 0, 14, 100), WallRequest(0, 14, 14, "keys", False, 14, 64)):
        driver.send(*(TakePicture(request, side=side) for side in ("a", "b", "difference")))
    driver.wait_for(HeadPicture, 3)
    driver.wait_for(WallPicture, 3)
    for kind in (HeadPicture, WallPicture):
        a, b, difference = driver.of(kind)
        assert (a.request, a.provenance) == (b.request, "as stored now")
        assert (a.low - b.low == difference.low).all()
    a, b, difference = driver.of(HeadPicture)
    assert (difference.low[8:] != 0).any()
    assert (difference.low[:8] == 0).all()


def test_what_cannot_be_compared_is_said_and_the_run_goes_on(driver: Driver) -> None:
    driver.send(prompt(12), StartComparison(0, INT8))
    assert "run a prompt first" in driver.wait_for(Failed).message
    driver.send(StartComparison(7, INT8))
    driver.wait_for(Failed, 2)
    driver.send(Step())
    driver.wait_for(StepRecord)
    driver.send(StartComparison(0, OtherStep(99)))
    assert "held no rows after step 99" in driver.wait_for(Failed, 3).message
