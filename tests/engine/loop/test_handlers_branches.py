"""Branches in the loop: what is answered, in which order, and what is refused in a sentence."""

from __future__ import annotations

from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.spec.sampling import SamplingParams
from engine.wire.commands import (
    BeginBranch,
    DeleteBranch,
    Force,
    Fork,
    GoTo,
    JoinBranches,
    LoadModel,
    RedoEdit,
    RemoveSequence,
    SetKeptLimit,
    Step,
    StopSequence,
    UndoEdit,
)
from engine.wire.events import BranchDeleted, Failed, ForkMade, NodeAdded, Restarted, WentTo
from engine.wire.records import SamplingChanged, SequenceForked, StepRecord, TokensForced
from tests.engine.loop.driver import Driver, prompt


def test_what_is_left_unstepped_is_told_before_where_one_went(driver: Driver) -> None:
    driver.send(prompt(6, temperature=1.0, seed=4), Step(4))
    driver.wait_for(StepRecord, 4)
    driver.send(Force(0, (5, 6)))
    assert driver.rest().pending == (TokensForced(0, (5, 6)),)
    driver.send(GoTo(1, id=9))
    went = driver.wait_for(WentTo)
    (added,) = driver.of(NodeAdded)
    assert (added.node.step, added.node.parent, added.node.changes, added.is_live) == (
        4, 3, (TokensForced(0, (5, 6)),), False,
    )  # fmt: skip
    assert driver.events.index(added) < driver.events.index(went)
    assert (went.step, went.reply_to, added.reply_to) == (1, 9, 9)
    assert (driver.rest().step, driver.rest().pending) == (1, ())


def test_another_branch_from_a_step_in_one_command_and_both_are_there(driver: Driver) -> None:
    driver.send(prompt(6, temperature=1.0, seed=4), Step(5))
    driver.wait_for(StepRecord, 5)
    warm = SamplingParams(temperature=2.0, seed=8)
    driver.send(BeginBranch(0, 2, token_ids=(7,), sampling=warm), Step(2))
    record = driver.wait_for(StepRecord, 7)
    assert (record.step, record.parent) == (6, 5)
    first = driver.of(StepRecord)[5]
    assert (first.step, first.parent, first.sequences[0].token_ids) == (5, 2, (7,))
    assert first.changes == (SamplingChanged(0, warm), TokensForced(0, (7,)))
    driver.send(GoTo(4), Fork(0, 6))
    assert "kept" in driver.wait_for(WentTo, 2).how
    assert driver.wait_for(ForkMade).step == 6
    driver.send(Step())
    assert len(driver.wait_for(StepRecord, 8).sequences) == 2, "two branches run on together"


def test_a_branch_is_deleted_and_what_cannot_be_is_said(driver: Driver) -> None:
    driver.send(prompt(6, temperature=1.0, seed=4), Step(5))
    driver.wait_for(StepRecord, 5)
    driver.send(GoTo(1), Step(2))
    driver.wait_for(StepRecord, 7)
    driver.send(DeleteBranch(5), DeleteBranch(77), UndoEdit(), RedoEdit(), GoTo(-1), DeleteBranch(3))
    assert driver.wait_for(BranchDeleted).steps == (3, 4)
    words = [failed.message for failed in driver.of(Failed)]
    assert [word.split(":")[0] for word in words] == [
        "The live step came of step 5",
        "There is no step 77 to go to",
        "There is no edit to undo on the way to this step.",
        "There is no undone edit to return to",
        "There is no step -1 to go to",
    ]
    assert driver.rest().step == 6


def test_the_sequences_of_another_branch_run_on_beside_those_of_the_live_one(driver: Driver) -> None:
    """0 goes two ways after step 2; 1 is computed on one of them alone. Asking again changes nothing, nor does asking
    for what is not there."""
    driver.send(prompt(6, temperature=1.0, seed=4), Step(5))
    driver.wait_for(StepRecord, 5)
    driver.send(BeginBranch(0, 2, token_ids=(7,)), Step(3))
    driver.wait_for(StepRecord, 8)
    driver.send(JoinBranches((4,), id=9), JoinBranches((4,)), JoinBranches((77, 4)), Step(2))
    forked = driver.wait_for(ForkMade)
    assert (forked.parent, forked.child, forked.step, forked.reply_to) == (0, 1, 4, 9)
    assert len(driver.of(ForkMade)) == 1
    driver.wait_for(StepRecord, 10)
    records = driver.of(StepRecord)[8:10]
    assert [[part.seq_id for part in record.sequences] for record in records] == [[0, 1], [0, 1]]
    assert records[0].changes == (SequenceForked(1, 0, 4),)
    told = [failed.message for failed in driver.of(Failed)]
    assert told[0] == "The live step has every sequence of step 4 as it stands there: choose another branch."
    assert told[1].startswith("There is no step 77 to go to")
    driver.send(GoTo(4), Step())
    alone = driver.wait_for(StepRecord, 11).sequences[0]
    together = records[0].sequences[1]
    assert alone.token_ids == together.token_ids, "it is given what its own branch would have been given"
    assert alone.sampled == together.sampled


def test_only_what_differs_is_taken_from_a_branch_of_several_sequences(driver: Driver) -> None:
    driver.send(prompt(6, temperature=1.0, seed=4), Step(2), Fork(0), Step(2))
    driver.wait_for(StepRecord, 4)
    driver.send(RemoveSequence(1), Step(2))  # 0 alone goes on; 1 stands where step 3 left it
    driver.wait_for(StepRecord, 6)
    driver.send(JoinBranches((3,)), Step())
    record = driver.wait_for(StepRecord, 7)
    assert [(one.parent, one.step) for one in driver.of(ForkMade)[1:]] == [(0, 3), (1, 3)]
    assert [part.seq_id for part in record.sequences] == [0, 2, 3]
    driver.send(GoTo(3), StopSequence(1), Step(2))
    driver.wait_for(StepRecord, 9)
    driver.send(GoTo(6), JoinBranches((8,)), Step())
    record = driver.wait_for(StepRecord, 10)
    assert [(one.parent, one.step) for one in driver.of(ForkMade)[3:]] == [(0, 8), (1, 8)], "a stopped one comes along"
    assert [part.seq_id for part in record.sequences] == [0, 2, 3, 4]


def test_kept_checkpoints_take_what_a_person_lets_them_take(driver: Driver) -> None:
    """Also in a session that comes after."""
    driver.send(prompt(6, temperature=1.0, seed=4), Step(5))
    driver.wait_for(StepRecord, 5)
    driver.send(GoTo(2))
    driver.wait_for(WentTo)
    status = driver.rest()
    assert [kept.step for kept in status.kept] == [4]
    assert status.kept_bytes > 0
    driver.send(SetKeptLimit(status.kept_bytes))
    assert driver.rest().kept == status.kept
    driver.send(SetKeptLimit(status.kept_bytes - 1))
    status = driver.rest()
    assert (status.kept, status.kept_bytes) == ((), 0)
    limit = status.kept_limit
    driver.send(SetKeptLimit(-1))
    assert driver.wait_for(Failed).message == "Checkpoints cannot take -1 bytes: give 0 or more."
    assert driver.rest().kept_limit == limit
    assert driver.status.model is not None
    driver.send(LoadModel(ModelSpec(driver.status.model.source, device="cpu", num_threads=1), CacheSpec()))
    driver.wait_for(Restarted)
    assert driver.rest().kept_limit == limit
