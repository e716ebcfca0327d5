"""Steps that are done once more, as far as they can be: what cannot is told to be gone."""

from __future__ import annotations

from engine.spec.edit import Rows, Zero
from engine.spec.model import ModelSpec
from engine.wire.changes import EditMade
from engine.wire.commands import LoadModel, Redo, Step
from engine.wire.events import BranchDeleted, Redone, Restarted
from engine.wire.records import StepRecord
from engine.wire.tree import Node
from tests.engine.loop.driver import GROWING, Driver, prompt


def test_moments_that_could_not_be_done_once_more_are_told_to_be_gone(driver: Driver) -> None:
    driver.send(prompt(6), Step(3))
    driver.wait_for(StepRecord, 3)
    info = driver.rest().model
    assert info is not None
    nodes = [Node.of(record) for record in driver.of(StepRecord)]
    edit = EditMade(Zero(7, Rows(0, 4)))  # of a sequence that is not there
    nodes += [Node(3, 1, (edit,), GROWING), Node(4, 2, (), GROWING, nodes[-1].work)]
    driver.forget()
    driver.send(LoadModel(ModelSpec(info.source, device="cpu", num_threads=1), GROWING))
    driver.wait_for(Restarted)
    driver.send(Redo(tuple(nodes), 4))
    redone = driver.wait_for(Redone)
    assert redone.why_not_all
    assert driver.wait_for(BranchDeleted).steps == (3, 4)
    assert [moment.node.step for moment in driver.session.history.tree] == [0, 1, 2]
