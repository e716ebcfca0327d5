"""Edits asked of the engine: what is answered, in which order, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.look.candidates import NUM_CANDIDATES
from engine.spec.edit import BiasLogits, Overwrite, Rows, Scale, Zero
from engine.wire.commands import GoTo, MakeEdit, RedoEdit, Step, UndoEdit
from engine.wire.events import Failed, NodeAdded, WentTo
from engine.wire.exporting import Export, Exported
from engine.wire.measurements import EditMeasured
from engine.wire.records import StepRecord
from tests.engine.loop.driver import Driver, prompt


def test_an_edit_is_answered_by_its_node_and_by_what_it_did(driver: Driver) -> None:
    driver.send(prompt(12))
    driver.send(Step(3))
    driver.wait(lambda: len(driver.of(StepRecord)) == 3)
    driver.send(MakeEdit(Zero(0, Rows(2, 5)), id=41))
    measured = driver.wait(lambda: driver.of(EditMeasured))[0]
    added = driver.of(NodeAdded)[0]
    assert (added.reply_to, measured.reply_to) == (41, 41)
    assert (added.node.step, added.node.parent, added.is_live) == (3, 2, True)
    assert measured.step == 3
    assert measured.kl == added.kl
    assert measured.kl is not None
    assert measured.kl > 0
    assert len(measured.before) == len(measured.after) == NUM_CANDIDATES
    assert "measured in" in added.how
    driver.send(Step(1))
    record = driver.wait(lambda: driver.of(StepRecord)[3:])[0]
    assert (record.step, record.parent) == (4, 3)
    driver.send(UndoEdit(), RedoEdit(), GoTo(4))
    assert [went.step for went in driver.wait(lambda: driver.of(WentTo)[2:] and driver.of(WentTo))] == [2, 4, 4]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (Zero(0, Rows(2, 500)), "no positions"),
        (Zero(7, Rows(2, 3)), "no sequence 7"),
        (BiasLogits(0, banned=tuple(range(128))), "Every token is banned"),
        (Overwrite(0, Rows(2, 3), from_step=99), "no step 99"),
        (Overwrite(0, Rows(2, 3), from_file="/nowhere/x.safetensors"), "cannot be opened"),
    ],
)
def test_an_edit_that_cannot_be_made_is_refused_in_a_sentence(driver: Driver, edit: Zero, words: str) -> None:
    driver.send(prompt(12))
    driver.send(Step(2))
    driver.wait(lambda: len(driver.of(StepRecord)) == 2)
    driver.send(MakeEdit(edit))
    failed = driver.wait(lambda: driver.of(Failed))[0]
    assert words in failed.message
    assert not driver.of(NodeAdded)


def test_rows_of_a_snapshot_file_are_written_over_those_of_now(driver: Driver, tmp_path: Path) -> None:
    driver.send(prompt(12))
    driver.send(Step(3))
    driver.wait(lambda: len(driver.of(StepRecord)) == 3)
    path = tmp_path / "x.safetensors"
    driver.send(Export(path, 0))
    driver.wait(lambda: driver.of(Exported))
    driver.send(MakeEdit(Scale(0, Rows(2, 6), 3.0)))
    driver.wait(lambda: driver.of(EditMeasured))
    driver.send(MakeEdit(Overwrite(0, Rows(2, 6), from_file=str(path))))
    before, back = driver.wait(lambda: driver.of(EditMeasured)[1:] and driver.of(EditMeasured))
    assert [c.prob for c in back.after] == pytest.approx([c.prob for c in before.before], rel=1e-5)
    driver.send(MakeEdit(Overwrite(0, Rows(2, 6), from_file=str(path), shift=20)))
    assert "are not in the" in driver.wait(lambda: driver.of(Failed))[0].message
