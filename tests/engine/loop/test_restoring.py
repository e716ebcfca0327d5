"""Steps that are done once more, as far as they can be: what cannot is told to be gone."""

from __future__ import annotations

from engine.spec.edit import Rows, Zero
from engine.spec.model import ModelSpec
from engine.wire.commands import LoadModel, Redo, Step
from engine.wire.events import BranchDeleted, Redone, Restarted
from engine.wire.records import EditMade, StepRecord
from engine.wire.tree import Node
from tests.engine.loop.driver import GROWING, Driver, prompt

OF_NOBODY = EditMade(Zero(7, Rows(0, 4)))  # of a sequence that is not there


def left(driver: Driver) -> list[Node]:
    """Three steps of a session whose model is loaded anew: all is to be done once more."""
    driver.send(prompt(6), Step(3))
    driver.wait_for(StepRecord, 3)
    info = driver.rest().model
    assert info is not None
    nodes = [Node.of(record) for record in driver.of(StepRecord)]
    driver.forget()
    driver.send(LoadModel(ModelSpec(info.source, device="cpu", num_threads=1), GROWING))
    driver.wait_for(Restarted)
    return nodes


def test_moments_that_could_not_be_done_once_more_are_told_to_be_gone(driver: Driver) -> None:
    nodes = left(driver)
    nodes += [Node(3, 1, (OF_NOBODY,), GROWING), Node(4, 2, (), GROWING, nodes[-1].work)]
    driver.send(Redo(tuple(nodes), 4))
    redone = driver.wait_for(Redone)
    assert redone.why_not_all
    assert driver.wait_for(BranchDeleted).steps == (3, 4)
    assert [entry.node.step for entry in driver.session.history.tree] == [0, 1, 2]


def test_a_change_behind_the_last_step_that_cannot_be_made_is_told(driver: Driver) -> None:
    driver.send(Redo(tuple(left(driver)), 2, (OF_NOBODY,)))
    assert "7" in driver.wait_for(Redone).why_not_all
    assert driver.rest().step == 2
