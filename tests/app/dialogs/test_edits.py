"""What the dialogs of edits say, refuse and ask for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from PySide6.QtWidgets import QApplication, QDialog

from app.dialogs.edits import NoiseForm, OverwriteForm, ReplaceForm, ScaleForm, TypedForm
from app.shell import Shell
from engine.spec.edit import AddNoise, Overwrite, ReplaceTokens, Rows, Scale, Zero
from engine.wire.commands import Tokenize
from engine.wire.events import Tokenized
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.panels.edits.conftest import desk as desk
from tests.app.panels.edits.menus import made, opened


@pytest.fixture
def asked(desk: Shell) -> Callable[[str, type[QDialog]], QDialog]:
    """Opens the dialog of an action on the tokens 4 … 7 of one head."""

    def ask(name: str, kind: type[QDialog]) -> QDialog:
        desk.models.selection.update(position=4, area=Rows(4, 8, (3,), (1,)))
        desk.window.actions_[name].trigger()
        QApplication.processEvents()
        return opened(kind)

    return ask


def test_scaling_says_what_it_touches_before_it_is_done(
    asked: Callable[..., ScaleForm], desk: Shell, engine: FakeEngine
) -> None:
    form = asked("edit.scale", ScaleForm)
    form.factor.setValue(2.5)
    # 4 tokens of one head: 4 x 32 of K and of V
    assert form.touched.text() == "positions 4 … 7 · layer 3 · kv head 1 · K and V\n256 numbers, 1.0 KiB"
    assert form.text.text() == "scale by=2.5 pos=4:8 layer=3 head=1"
    form.part.set_choice("keys")
    form.part.chosen.emit("keys")
    assert form.touched.text().endswith("K\n128 numbers, 512 B")
    form.ok.click()
    assert made(engine) == [Scale(0, Rows(4, 8, (3,), (1,), part="keys"), 2.5)]


def test_noise_of_nothing_is_refused_in_one_sentence(asked: Callable[..., NoiseForm], engine: FakeEngine) -> None:
    form = asked("edit.noise", NoiseForm)
    form.ratio.setValue(0)
    assert not form.ok.isEnabled()
    assert form.problem.text() == "Noise of 0 standard deviations is none: give a ratio above 0."
    form.ratio.setValue(0.5)
    form.seed.setValue(9)
    assert form.ok.isEnabled()
    form.ok.click()
    assert made(engine) == [AddNoise(0, Rows(4, 8, (3,), (1,)), 0.5, 9)]


def test_rows_are_overwritten_from_a_step_or_a_file(asked: Callable[..., OverwriteForm], engine: FakeEngine) -> None:
    form = asked("edit.overwrite", OverwriteForm)
    form.step.setValue(11)
    form.shift.setValue(-2)
    form.ok.click()
    form = asked("edit.overwrite", OverwriteForm)
    form.source.set_choice("file")
    form.source.chosen.emit("file")
    assert form.problem.text() == "No file is named: choose the snapshot that the rows come from."
    form.file.setText("/tmp/a.safetensors")
    form.ok.click()
    rows = Rows(4, 8, (3,), (1,))
    assert made(engine) == [
        Overwrite(0, rows, 11, shift=-2),
        Overwrite(0, rows, from_file="/tmp/a.safetensors"),
    ]


def test_other_tokens_are_named_by_ids_or_as_a_text_that_the_engine_counts(
    asked: Callable[..., ReplaceForm], desk: Shell, engine: FakeEngine
) -> None:
    form = asked("edit.replace", ReplaceForm)
    label = form.form.itemAt(0, form.form.ItemRole.FieldRole).widget()
    assert label.text().startswith("positions 4 … 7 “")
    form.tokens.line.setText("four words of text")
    assert form.problem.text() == "The tokens of this text are being counted."
    desk.controller.tick()
    number = engine.id_of(Tokenize)
    engine.emit(Tokenized((5, 6, 7, 8), ("a", "b", "c", "d"), reply_to=number))
    turn(desk)
    assert form.ok.isEnabled()
    form.ok.click()
    assert made(engine) == [ReplaceTokens(0, 4, (5, 6, 7, 8), "overwrite", 4)]
    form = asked("edit.replace", ReplaceForm)
    form.tokens.kind.set_choice("ids")
    form.tokens.line.setText("17, 18")
    assert form.problem.text().startswith("As many tokens are overwritten as are given")
    form.how.set_choice("re-prefill")
    form.how.chosen.emit("re-prefill")
    form.ok.click()
    assert made(engine)[1] == ReplaceTokens(0, 4, (17, 18), "re-prefill", 4)


def test_an_edit_is_typed_and_refused_until_it_can_be_read(asked: Callable[..., TypedForm], engine: FakeEngine) -> None:
    form = asked("edit.typed", TypedForm)
    form.line.setText("zero pos=4:80")
    assert form.problem.text() == "There are no positions 4 … 79 to edit: this sequence has positions 0 … 23."
    assert not form.ok.isEnabled()
    form.line.setText("zero pos=4: layer=0-2 part=keys")
    form.ok.click()
    assert made(engine) == [Zero(0, Rows(4, 24, (0, 1, 2), part="keys"))]
