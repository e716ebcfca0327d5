"""The two lists of codecs: K, and V, which follows K until a person says otherwise."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication, QComboBox

from app.kit.fields import CodecChoice
from engine.errors import InputError
from engine.spec.codec import CODECS, ROW_OF_NAME, CodecSpec, Coding


@pytest.fixture
def choice(qapp: QApplication) -> CodecChoice:
    return CodecChoice()


def test_every_codec_can_be_chosen_for_each_part(choice: CodecChoice) -> None:
    made = set()
    for name in CODECS:
        for bits in (8, 4, 2):
            choice.choose(name)
            both = choice.spec(bits, 32, 32)
            assert both.keys == both.values
            made.add(both.keys.name)
            choice.choose("int8", name)
            assert choice.spec(bits, 32, 32) == CodecSpec(Coding("int8"), both.keys)
    assert made == set(ROW_OF_NAME)


def test_v_follows_k_until_it_is_chosen(choice: CodecChoice) -> None:
    keys, values = choice.findChildren(QComboBox)
    keys.setCurrentIndex(keys.findData("int8"))
    assert (choice.keys, choice.values) == ("int8", "int8")
    values.setCurrentIndex(values.findData("kivi"))
    keys.setCurrentIndex(keys.findData("fp8"))
    assert (choice.keys, choice.values) == ("fp8", "kivi")
    assert choice.spec(2, 16, 32) == CodecSpec(Coding("fp8"), Coding("kivi-2", 16, 32))


def test_its_parameters_are_those_of_both(choice: CodecChoice) -> None:
    assert choice.parameters == frozenset()
    choice.choose("int8", "fp8-max")
    assert choice.parameters == {"group"}
    choice.choose("kivi", "exact")
    assert choice.parameters == {"bits", "group", "residual"}


def test_one_choice_of_both_tells_one_change(choice: CodecChoice) -> None:
    told: list[tuple[str, str]] = []
    choice.changed.connect(lambda: told.append((choice.keys, choice.values)))
    choice.choose("int8", "kivi")
    choice.choose("int8", "kivi")
    choice.choose("exact")
    assert told == [("int8", "kivi"), ("exact", "exact")]


def test_numbers_that_cannot_be_are_refused(choice: CodecChoice) -> None:
    choice.choose("exact", "kivi")
    with pytest.raises(InputError, match="multiple of the group"):
        choice.spec(4, 32, 40)


def test_the_formula_and_the_paper_of_both_codecs_are_said(choice: CodecChoice) -> None:
    choice.choose("fp8")
    assert choice.words == "FP8: e4m3(x / s) · s, s = amax / 448 of the tensor · Micikevicius et al., 2022"
    choice.choose("int8", "kivi")
    keys, values = choice.words.split("   ")
    assert keys.startswith("INT8: round(x / s) · s, s = amax / 127 of the row")
    assert values.endswith("of the group · Liu et al., 2024")
    choice.choose("int8", "exact")
    assert choice.words == keys
    choice.choose("exact")
    assert choice.words == ""
