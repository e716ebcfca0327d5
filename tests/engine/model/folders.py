"""Model folders to be altered and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import InputError
from engine.model.loader import load
from engine.spec.model import ModelSpec

EVIL = "import os\nopen(os.path.join(os.path.dirname(__file__), 'ran'), 'w')\nclass A: pass\n"


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **{chr(0x21 + i): 3 + i for i in range(94)}, "Ġ": 97}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def refused(source: Path | str, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        load(ModelSpec(str(source), device="cpu", num_threads=1, **options))
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message
