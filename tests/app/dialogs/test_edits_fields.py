"""The forms of edits on two sequences with an edit behind them: every field, alone, and the edit that it makes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QWidget

from app.dialogs.edits import (
    BiasForm,
    EditForm,
    NoiseForm,
    OverwriteForm,
    ReplaceForm,
    ScaleForm,
    TokensField,
    TypedForm,
)
from app.kit.asking import Question
from app.kit.widgets import Segments
from app.models import Models
from engine.errors import InputError
from engine.spec.edit import AddNoise, BiasLogits, Overwrite, ReplaceTokens, Rows, Scale, Zero
from engine.wire.commands import Tokenize
from engine.wire.events import Failed, NodeAdded, Tokenized
from engine.wire.records import EditMade
from engine.wire.tree import Node
from tests.app import samples
from tests.app.rich import SPEC, rich_models

ROWS = Rows(2, 5, (3,), (1,), part="values")


@pytest.fixture
def rich(qapp: object) -> Models:
    """Sequence 1 is selected, of which one token is favoured and another banned."""
    models = rich_models()
    bias = BiasLogits(1, biases=((7, 1.5), (8, -1.0)), banned=(9,))
    for step, edit in ((11, bias), (12, BiasLogits(0, only=(4,)))):
        models.history.add(NodeAdded(Node(step, step - 1, (EditMade(edit),), SPEC), True))
        models.timeline.go_to(step)
    models.selection.update(seq_id=1, position=2, area=ROWS)
    return models


def choose(segments: Segments, choice: str) -> None:
    segments.set_choice(choice)
    segments.chosen.emit(choice)


def problem(form: EditForm) -> str:
    assert not form.ok.isEnabled()
    return form.problem.text()


def test_numbers_of_the_rows_that_are_selected(rich: Models, host: QWidget) -> None:
    scale, noise = ScaleForm(rich, host), NoiseForm(rich, host)
    assert (scale.answer(), noise.answer()) == (Scale(1, ROWS, 0.5), AddNoise(1, ROWS, 0.1, 0))
    choose(scale.part, "keys")
    scale.factor.setValue(-3.25)
    assert scale.answer() == Scale(1, replace(ROWS, part="keys"), -3.25)
    noise.seed.setValue(4)
    assert noise.answer() == AddNoise(1, ROWS, 0.1, 4)
    choose(noise.part, "both")
    assert noise.answer() == AddNoise(1, replace(ROWS, part="both"), 0.1, 4)
    rich.selection.update(position=None)
    scale.show_edit()
    assert problem(scale).startswith("Nothing is selected: drag over tokens")


def test_a_click_on_a_part_edits_that_part(rich: Models, host: QWidget) -> None:
    form = ScaleForm(rich, host)
    form.part.resize(300, 28)
    for place, part in enumerate(("both", "keys", "values")):
        QTest.mouseClick(form.part, Qt.MouseButton.LeftButton, pos=form.part.rects()[place].center().toPoint())
        assert form.answer() == Scale(1, replace(ROWS, part=part), 0.5)


def test_rows_come_from_a_moment_a_sequence_or_a_file(rich: Models, host: QWidget) -> None:
    form = OverwriteForm(rich, host)
    assert form.answer() == Overwrite(1, ROWS, 11), "the moment before the live one"
    assert [form.sequence.itemText(n) for n in range(form.sequence.count())] == ["the same sequence", "sequence 0"]
    form.sequence.setCurrentIndex(1)
    form.step.setValue(3)
    form.shift.setValue(4)
    assert form.answer() == Overwrite(1, ROWS, 3, 0, shift=4)
    assert [each.isVisibleTo(form) for each in (form.step, form.sequence, form.file)] == [True, True, False]
    choose(form.source, "file")
    assert [each.isVisibleTo(form) for each in (form.step, form.sequence, form.file)] == [False, False, True]
    assert problem(form) == "No file is named: choose the snapshot that the rows come from."
    form.file.setText("  /a.safetensors ")
    assert form.answer() == Overwrite(1, ROWS, from_file="/a.safetensors", shift=4)


def test_an_edit_that_is_typed_is_of_the_selected_sequence(rich: Models, host: QWidget) -> None:
    form = TypedForm(rich, host)
    assert problem(form).startswith("Type what to do, for example:")
    form.line.setText("zero pos=2:4")
    assert form.answer() == Zero(1, Rows(2, 4))
    assert form.touched.text().startswith("positions 2 … 3")
    form.line.setText("zero pos=2:4 layer=90")
    assert problem(form)
    assert not form.touched.text()


def test_other_tokens_and_how_much_is_computed_for_them(rich: Models, host: QWidget) -> None:
    form = ReplaceForm(rich, host)
    form.tokens.kind.set_choice("ids")
    form.tokens.line.setText("17, 18 19")
    assert form.answer() == ReplaceTokens(1, 2, (17, 18, 19), "overwrite", 3)
    a_token = 2 * samples.LAYERS * samples.KV_HEADS * samples.HEAD_DIM
    assert form.touched.text().endswith(f"\nK and V of positions 2 … 4: {3 * a_token:,} numbers, 18.0 KiB")
    form.tokens.line.setText("17")
    choose(form.how, "re-prefill")
    assert form.answer() == ReplaceTokens(1, 2, (17,), "re-prefill", 3)
    last = rich.timeline.num_tokens(1) - 3
    count = (last - 1) * a_token
    assert f"\nK and V of positions 2 … {last}: {count:,} numbers" in form.touched.text()


def test_a_bias_is_added_to_what_the_sequence_has(rich: Models, host: QWidget) -> None:
    form = BiasForm(rich, host)
    assert problem(form) == "No tokens are named: type a text, or ids like 17, 18."
    form.offer((8, 20))
    assert form.answer() == BiasLogits(1, ((7, 1.5), (8, 2.0), (20, 2.0)), (9,))
    form.amount.setValue(-4)
    assert form.answer() == BiasLogits(1, ((7, 1.5), (8, -4.0), (20, -4.0)), (9,))
    choose(form.what, "ban")
    assert form.answer() == BiasLogits(1, ((7, 1.5), (8, -1.0)), (9, 8, 20))
    assert not form.form.isRowVisible(form.amount)
    choose(form.what, "only")
    assert form.answer() == BiasLogits(1, ((7, 1.5), (8, -1.0)), (9,), (8, 20))
    choose(form.what, "bias")
    assert form.form.isRowVisible(form.amount)
    rich.selection.update(seq_id=2)
    assert BiasForm(rich, host).seq_id == 2


def ids_of(field: TokensField) -> tuple[int, ...] | str:
    try:
        return field.ids
    except InputError as error:
        return str(error)


@pytest.mark.parametrize(
    ("typed", "ids", "words"),
    [
        ("5", (5,), "1 token: 5"),
        ("5, 6,7 8", (5, 6, 7, 8), "4 tokens: 5, 6, 7, 8"),
        (" ".join(map(str, range(12))), tuple(range(12)), f"12 tokens: {', '.join(map(str, range(12)))}"),
        (" ".join(map(str, range(13))), tuple(range(13)), f"13 tokens: {', '.join(map(str, range(12)))} …"),
        ("999999999", (999999999,), "1 token: 999999999"),
        ("1000000000", "Token ids are whole numbers, with spaces or commas between them: 17, 18.", ""),
        ("5 -6", "Token ids are whole numbers, with spaces or commas between them: 17, 18.", ""),
        ("٣", "Token ids are whole numbers, with spaces or commas between them: 17, 18.", ""),
        ("  ", "No tokens are named: type a text, or ids like 17, 18.", ""),
    ],
)
def test_ids_as_they_are_typed(qapp: object, typed: str, ids: tuple[int, ...] | str, words: str) -> None:
    field = TokensField(has_tokenizer=False)
    assert not field.kind.isEnabled()
    field.line.setText(typed)
    assert (ids_of(field), field.words.text()) == (ids, words)


def test_a_text_is_counted_before_it_is_tokens_and_a_late_count_is_none_of_ids(qapp: object) -> None:
    field = TokensField(has_tokenizer=True)
    asked: list[Question] = []
    field.wants.connect(asked.append)
    field.take(Tokenized((1,), ("x",)))
    assert ids_of(field) == "No tokens are named: type a text, or ids like 17, 18.", "nobody asked"
    field.line.setText(" ")
    assert [question.command for question in asked] == [Tokenize(" ")]
    assert ids_of(field) == "The tokens of this text are being counted."
    asked[-1].on_answer(Tokenized((5, 6), ("x", "y")))
    assert (field.ids, field.words.text()) == ((5, 6), "2 tokens: 5, 6")
    field.line.setText("x")
    field.refuse(Failed("It cannot be."))
    assert ids_of(field) == "It cannot be."
    field.line.setText("xy")
    choose(field.kind, "ids")
    field.take(Tokenized((7,), ("x",)))
    assert ids_of(field).startswith("Token ids are whole numbers")  # type: ignore[union-attr]
    field.line.setText("")
    assert ids_of(field) == "No tokens are named: type a text, or ids like 17, 18."
