"""Edits are checked in plain sentences, and are the same once they were written as JSON, on the wire, or as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json, msgpack

from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.spec.edit import (
    EDITS,
    FORMS,
    AddNoise,
    BiasLogits,
    Drop,
    Edit,
    Mask,
    Overwrite,
    Pin,
    ReplaceTokens,
    Rows,
    Scale,
    Zero,
    edit_text,
    parse_edit,
)
from tests.engine.tiny import config_dict

GEOMETRY = CacheGeometry.from_config(config_dict("llama"))  # 2 layers, 2 kv heads of 16 channels, 128 tokens
HYBRID = CacheGeometry.from_config(config_dict("lfm2"))

numbers = st.integers(0, 30)
chosen = st.none() | st.sets(numbers, min_size=1, max_size=5).map(lambda found: tuple(sorted(found)))
floats = st.floats(-1e4, 1e4)


@st.composite
def rows(draw: st.DrawFn, is_whole: bool = False) -> Rows:
    start = draw(numbers)
    stop = start + draw(st.integers(1, 9))
    if is_whole:
        return Rows(start, stop, draw(chosen), draw(chosen))
    part = draw(st.sampled_from(["keys", "values", "both"]))
    return Rows(start, stop, draw(chosen), draw(chosen), draw(chosen), part)  # type: ignore[arg-type]


token_ids = st.lists(numbers, max_size=4).map(tuple)
edits = st.one_of(
    st.builds(Zero, numbers, rows()),
    st.builds(Scale, numbers, rows(), floats),
    st.builds(AddNoise, numbers, rows(), floats, numbers),
    st.builds(Overwrite, numbers, rows(), st.none() | numbers, st.none() | numbers, st.none(), st.integers(-9, 9)),
    st.builds(lambda i, r: Overwrite(i, r, from_file="a b/c.safetensors"), numbers, rows()),
    st.builds(Mask, numbers, rows(is_whole=True), st.booleans()),
    st.builds(Pin, numbers, rows(is_whole=True), st.booleans()),
    st.builds(Drop, numbers, rows(is_whole=True)),
    st.builds(
        ReplaceTokens, numbers, numbers, token_ids, st.sampled_from(["overwrite", "re-prefill"]), st.integers(0, 5)
    ),
    st.builds(BiasLogits, numbers, st.lists(st.tuples(numbers, floats), max_size=3).map(tuple), token_ids, token_ids),
)


@given(edits)
def test_an_edit_is_the_same_once_it_was_written_and_read(edit: Edit) -> None:
    for coder in (json, msgpack):
        assert coder.decode(coder.encode(edit), type=Edit) == edit
    assert parse_edit(edit_text(edit), edit.seq_id, 40) == edit
    assert edit.describe()


def test_every_edit_has_a_label_and_can_be_typed() -> None:
    assert len({kind.label for kind in EDITS}) == len(EDITS)
    assert all(kind.label for kind in EDITS)
    texts = ["zero pos=4:8 layer=0-1 head=1 part=K", "scale by=2 pos=-3:", "noise ratio=.5 pos=4", "mask pos=:2",
             "overwrite step=5 pos=1", "unmask pos=1", "pin pos=1", "unpin pos=1", "drop pos=0:2",
             "replace pos=1:2 tokens=7", "bias add=7:-1.5 ban=8"]  # fmt: skip
    assert {text.split()[0] for text in texts} == set(FORMS)
    found = [parse_edit(text, 3, 10) for text in texts]
    assert found[0] == Zero(3, Rows(4, 8, (0, 1), (1,), None, "keys"))
    assert found[1] == Scale(3, Rows(7, 10), 2.0)
    assert found[2] == AddNoise(3, Rows(4, 5), 0.5)
    assert found[-1] == BiasLogits(3, ((7, -1.5),), (8,))
    for edit in found:
        edit.check(GEOMETRY, 10)


@pytest.mark.parametrize(
    "edit", ["zero", "scale by=2", "noise ratio=1", "overwrite step=1", "mask", "unmask", "pin", "unpin", "drop"]
)
def test_no_edit_is_of_rows_that_are_not_there(edit: str) -> None:
    parse_edit(f"{edit} pos=4:8", 0, 10).check(GEOMETRY, 10)
    for wrong, words in (
        ("pos=4:4", "no positions"),
        ("pos=4:8 layer=2", "no layer 2"),
        ("pos=4 head=2", "no kv head"),
    ):
        with pytest.raises(InputError, match=words):
            parse_edit(f"{edit} {wrong}", 0, 10).check(GEOMETRY, 10)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("zero pos=4:11", "no positions 4 … 10 to edit: this sequence has positions 0 … 9"),
        ("zero pos=12", "is no position 12 to edit"),
        ("zero pos=4:4", "no positions"),
        ("zero pos=1 layer=2", "no layer 2: there are 0 … 1"),
        ("zero pos=1 head=2", "no kv head 2 in layer 0: there are 0 … 1"),
        ("zero pos=1 channel=16", "no channel 16 in layer 0: there are 0 … 15"),
        ("scale by=inf pos=1", "no number"),
        ("noise ratio=0 pos=1", "ratio above 0"),
        ("mask pos=1 channel=2", "hidden as a whole"),
        ("drop pos=9", "newest row"),
        ("overwrite pos=3", "by themselves"),
        ("overwrite file=x.safetensors step=1 pos=3", "give one of them"),
        ("overwrite file=x.safetensors seq=1 pos=3", "give one of them"),
        ("overwrite step=1 shift=-4 pos=3", "before position 0"),
        ("replace pos=3:5 tokens=7", "As many tokens"),
        ("replace pos=3 tokens=700", "outside the vocabulary of 128"),
        ("replace pos=0:10 tokens= how=re-prefill", "needs a token"),
        ("bias add=3:1e9", "outside ±10000"),
        ("bias add=128:1", "outside the vocabulary of 128"),
        ("bias ban=3,128", "outside the vocabulary of 128"),
        ("bias only=128", "outside the vocabulary of 128"),
        ("bias only=3 ban=3", "Every token is banned"),
        (f"bias ban={','.join(map(str, range(128)))}", "Every token is banned"),
        ("bias add=3:1,3:2", "biased twice"),
    ],
)
def test_what_cannot_be_edited_is_refused_by_name(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_edit(text, 0, 10).check(GEOMETRY, 10)


def test_a_layer_without_rows_is_refused_by_its_kind() -> None:
    with pytest.raises(InputError, match="Layer 0 is linear and keeps no K and V"):
        Zero(0, Rows(0, 1, (0,))).check(HYBRID, 5)
    Zero(0, Rows(0, 1, (1,))).check(HYBRID, 5)
    Zero(0, Rows(0, 1)).check(HYBRID, 5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("erase pos=1", "'erase' is no edit"),
        ("", "is no edit"),
        ("zero", "names no positions"),
        ("zero pos=a", "names no positions"),
        ("zero pos=1 row=2", "'row' does not belong"),
        ("noise pos=1 by=2", "'by' does not belong"),
        ("noise pos=1", "'ratio=' is missing"),
        ("zero pos=1 pos=2", "cannot be read"),
        ("zero pos=1 2", "cannot be read"),
        ("scale by=x pos=1", "no number"),
        ("noise ratio=1 seed=x pos=1", "no whole number"),
        ("zero pos=1 part=q", "neither keys nor values"),
        ("zero pos=1 layer=x", "names no layers"),
        ("replace pos=1 tokens=x", "names no token ids"),
        ("replace pos=1 tokens=1 how=x", "neither overwrite nor re-prefill"),
        ("bias add=3:x", "names no bias"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_edit(text, 0, 10)


SOME = Rows(4, 9, (0, 2, 3), (1,), (5, 6, 7), "values")
WHOLE = Rows(4, 5, (1,), (0, 2))
SOME_WORDS = "positions 4 … 8 · layers 0, 2-3 · kv head 1 · channels 5-7 · V"
WHOLE_WORDS = "position 4 · layer 1 · kv heads 0, 2"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (Zero(3, SOME), f"zero {SOME_WORDS}"),
        (Scale(3, SOME, 2.5), f"scale by 2.5 {SOME_WORDS}"),
        (AddNoise(3, SOME, 0.25, 9), f"add noise of 0.25 standard deviations (seed 9) {SOME_WORDS}"),
        (Overwrite(3, SOME, 7, 2, shift=4), f"overwrite {SOME_WORDS} from sequence 2, step 7 (moved by +4)"),
        (Overwrite(3, SOME, 7, shift=-4), f"overwrite {SOME_WORDS} from step 7 (moved by -4)"),
        (Overwrite(3, SOME, from_file="/a b/c.x"), f"overwrite {SOME_WORDS} from file c.x"),
        (Mask(3, WHOLE), f"mask {WHOLE_WORDS}"),
        (Mask(3, WHOLE, hidden=False), f"unmask {WHOLE_WORDS}"),
        (Pin(3, WHOLE), f"pin {WHOLE_WORDS}"),
        (Pin(3, WHOLE, pinned=False), f"unpin {WHOLE_WORDS}"),
        (Drop(3, WHOLE), f"drop {WHOLE_WORDS}"),
        (
            BiasLogits(3, ((7, -1.5), (8, 2.0)), (3, 4, 5), (9,)),
            "bias logits: -1.5 on token 7, +2 on token 8, ban 3-5, only 9",
        ),
        (BiasLogits(3), "end the bias of logits"),
        (ReplaceTokens(3, 7, (5,)), "replace 1 token at position 7, overwrite their K and V alone"),
        (ReplaceTokens(3, 7, (5, 6), "re-prefill"), "replace 2 tokens at position 7, compute what follows anew"),
        (
            ReplaceTokens(3, 7, (5, 6), "re-prefill", 1),
            "replace 2 tokens for 1 at position 7, compute what follows anew",
        ),
        (ReplaceTokens(3, 7, (), "re-prefill", 4), "replace 0 tokens for 4 at position 7, compute what follows anew"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_edit_says_all_that_it_does(edit: Edit, words: str) -> None:
    assert edit.describe() == words
