"""Loops with a tiny model, and with one whose prompts take a while."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.engine.loop.driver import PATIENCE_S, Driver, shape_of
from tests.engine.model.folders import write_tokenizer
from tests.engine.tiny import COMMON, write_config


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(f"shape:{write_config('llama', tmp_path)}")
    yield driver.loaded()
    assert driver.loop.close(PATIENCE_S)


@pytest.fixture
def with_weights(tmp_path: Path) -> Iterator[Driver]:
    """A model whose weights are in a file: torch 2.11 draws other random ones in every dtype."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **COMMON)).save_pretrained(tmp_path / "model")
    driver = Driver(str(tmp_path / "model"))
    yield driver.loaded()
    assert driver.loop.close(PATIENCE_S)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Driver]:
    """A model whose chunk takes long enough to be caught in the middle of a prefill."""
    driver = Driver(shape_of(tmp_path, max_position_embeddings=8192, num_hidden_layers=8, hidden_size=256))
    yield driver.loaded()
    assert driver.loop.close(PATIENCE_S)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of which no two sizes are the same, with texts for its tokens and a chat template."""
    folder = tmp_path_factory.mktemp("models") / "uneven"
    torch.manual_seed(4)
    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "head_dim": 16}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **{**COMMON, **sizes}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.3)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}\n<{{ m.role[0] }}>{{ m.content }}\n{% endfor %}"
    )
    return folder
