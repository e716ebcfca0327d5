"""Branches in the loop: what is answered, in which order, and what is refused in a sentence."""

from __future__ import annotations

from engine.spec.sampling import SamplingParams
from engine.wire.changes import SamplingChanged, TokensForced
from engine.wire.commands import Branch, DeleteBranch, Force, Fork, GoTo, RedoEdit, Step, UndoEdit
from engine.wire.events import BranchDeleted, Failed, Forked, NodeAdded, WentTo
from engine.wire.records import StepRecord
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


def test_another_road_from_a_step_in_one_command_and_both_are_there(driver: Driver) -> None:
    driver.send(prompt(6, temperature=1.0, seed=4), Step(5))
    driver.wait_for(StepRecord, 5)
    warm = SamplingParams(temperature=2.0, seed=8)
    driver.send(Branch(0, 2, token_ids=(7,), sampling=warm), Step(2))
    record = driver.wait_for(StepRecord, 7)
    assert (record.step, record.parent) == (6, 5)
    first = driver.of(StepRecord)[5]
    assert (first.step, first.parent, first.sequences[0].token_ids) == (5, 2, (7,))
    assert first.changes == (SamplingChanged(0, warm), TokensForced(0, (7,)))
    driver.send(GoTo(4), Fork(0, 6))
    assert "kept" in driver.wait_for(WentTo, 2).how
    assert driver.wait_for(Forked).step == 6
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
        "The live moment came of step 5",
        "There is no step 77 to go to",
        "There is no edit to undo on the way to this moment.",
        "There is no undone edit to return to",
        "There is no step -1 to go to",
    ]
    assert driver.rest().step == 6
