"""What identifies a model: its name and its fingerprint; a shape is the same every time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.model.loader import load
from engine.model.source import text_fingerprint
from engine.spec.model import ModelSpec
from tests.engine.model.folders import edit_config, edit_weights
from tests.engine.tiny import write_config

pytestmark = pytest.mark.usefixtures("nothing_runs")


def test_the_fingerprint_of_texts_follows_tokenizer_and_templates(copy: Path) -> None:
    found = [text_fingerprint(copy)]
    (copy / "chat_template.jinja").write_text("{{ messages }}")
    found.append(text_fingerprint(copy))
    (copy / "chat_template.jinja").write_text("{{ messagez }}")
    found.append(text_fingerprint(copy))
    (copy / "tokenizer.json").write_text("{}")
    found.append(text_fingerprint(copy))
    (copy / "config.json").write_text("{}")
    assert text_fingerprint(copy) == found[-1]
    assert len({*found}) == 4
    assert text_fingerprint(None) == ""


def test_the_fingerprint_follows_weights_and_config(whole: Path, copy: Path) -> None:
    def fingerprint(folder: Path) -> str:
        return load(ModelSpec(str(folder), num_threads=1)).info.fingerprint

    first = fingerprint(whole)
    assert fingerprint(copy) == first
    edit_config(copy, rope_theta=5.0)
    second = fingerprint(copy)
    edit_weights(copy, lambda tensors: tensors["model.norm.weight"].add_(1))
    assert len({first, second, fingerprint(copy)}) == 3


@pytest.mark.parametrize(
    ("path", "name"),
    [("/models/smol/config.json", "smol"), ("/models/smol.json", "smol"), ("/config.json", "config")],
)
def test_a_shape_is_called_after_its_file_or_its_folder(path: str, name: str) -> None:
    assert ModelSpec(f"shape:{path}").shape_name == name


def test_shape_only_is_the_same_every_time_and_says_so(tmp_path: Path) -> None:
    source = f"shape:{write_config('qwen3', tmp_path)}"
    torch.manual_seed(1)
    one = load(ModelSpec(source, num_threads=1))
    torch.manual_seed(2)
    before = torch.initial_seed()
    two = load(ModelSpec(source, num_threads=1))
    assert torch.initial_seed() == before
    assert one.info.random_weights
    assert "random weights" in one.info.note
    assert one.info.fingerprint == two.info.fingerprint
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.equal(a, b)
