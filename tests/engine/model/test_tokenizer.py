"""A tokenizer is taken where it lies, its lack is told, and a broken one is refused or told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.errors import InputError
from engine.model.loader import load
from engine.model.tokenizer import TokenTexts, byte_alphabet
from engine.session.commands import encode
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.spec.sampling import Prompt
from tests.engine.model.folders import refused, write_tokenizer
from tests.engine.tiny import config_dict, write_config

pytestmark = pytest.mark.usefixtures("nothing_runs")


def test_no_tokenizer_is_told_and_no_error(copy: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (copy / name).unlink()
    model = load(ModelSpec(str(copy), num_threads=1))
    assert model.tokenizer is None
    assert "no tokenizer" in model.info.note
    assert TokenTexts(None)(7) == "<7>"


def test_a_shape_takes_the_tokenizer_beside_its_config(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    config = tmp_path / "smol.json"
    config.write_text(json.dumps(config_dict("llama")))
    model = load(ModelSpec(f"shape:{config}"))
    assert (model.info.name, model.info.has_tokenizer) == ("smol (shape only)", True)
    assert model.info.note == "random weights: only the shape is real"
    assert encode(model, Prompt(text="a b")).token_ids == [67, 97, 68]


def test_a_broken_tokenizer_beside_a_shape_is_a_note_and_no_refusal(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    model = load(ModelSpec(f"shape:{write_config('llama', tmp_path)}"))
    assert not model.info.has_tokenizer
    assert "prompts are token ids: The tokenizer in" in model.info.note


def test_a_tokenizer_of_another_model_is_refused_before_the_forward(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**config_dict("llama"), "vocab_size": 60}))
    session = Session(load(ModelSpec(f"shape:{config}")), CacheSpec())
    with pytest.raises(InputError, match="token id 97, outside the vocabulary of 60"):
        session.submit(Prompt(text="a b"))


@pytest.mark.parametrize("content", ["", "{}", "[" * 50_000, '{"version": "1.0", "model": {"type": "BPE"}}'])
def test_a_broken_tokenizer(copy: Path, content: str) -> None:
    (copy / "tokenizer.json").write_text(content)
    assert "tokenizer" in refused(copy)


def test_the_stand_ins_for_bytes_are_those_of_gpt2() -> None:
    """What can be printed stands for itself, the others for the characters from 256 on, in their order."""
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == [*range(256)]
    assert {c for c, byte in alphabet.items() if ord(c) == byte} == {
        c for c in map(chr, range(33, 256)) if c.isprintable()
    }
    others = "Ā Ġ ġ ł Ń"
    assert [alphabet[c] for c in others.split()] == [0x00, 0x20, 0x7F, 0xA0, 0xAD]
