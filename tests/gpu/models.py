"""The device, the cases that it tries, and models with random weights that are the same on every device."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.counted import counted
from engine.model.loader import LoadedModel, load
from engine.spec.model import ModelSpec, WeightFormat

ASKED = os.environ.get("KVLOUPE_DEVICE", "")
DEVICE = torch.device(ASKED or ("cuda" if torch.cuda.is_available() else "cpu"))
TRIES_ALL = bool(ASKED) or DEVICE.type == "cuda"
NO_GPU = "there is no GPU here that torch can use: KVLOUPE_DEVICE=cpu tries these on the CPU"

VOCABULARY = 2048
# Heads, groups and widths of a real model, but few layers: four layers show the same faults as thirty. With the usual
# standard deviation of 0.02 attention would be nearly uniform, and values too large by half would pass as bfloat16
# rounding.
CONFIG: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4, "hidden_size": 576,
    "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "intermediate_size": 1536,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192, "initializer_range": 0.05, "tie_word_embeddings": True, "eos_token_id": None,
}  # fmt: skip
# A model with sliding windows, and with layers that read the pages of another layer.
SHARING_CONFIG: dict[str, Any] = {
    "model_type": "gemma3n_text", "architectures": ["Gemma3nForCausalLM"], "num_hidden_layers": 4, "hidden_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512,
    "vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 32,
    "max_position_embeddings": 8192, "initializer_range": 0.05, "sliding_window": 24, "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "laurel_rank": 16, "altup_num_inputs": 2,
    "activation_sparsity_pattern": None, "eos_token_id": None,
}  # fmt: skip
ENCODER_CONFIG: dict[str, Any] = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "num_layers": 2, "num_decoder_layers": 2,
    "d_model": 128, "d_kv": 32, "d_ff": 256, "num_heads": 4, "vocab_size": VOCABULARY, "n_positions": 512,
    "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": None, "is_encoder_decoder": True,
}  # fmt: skip


def cases(everywhere: Iterable[tuple[Any, ...]], on_gpu: Iterable[tuple[Any, ...]] = ()) -> list[Any]:
    """The cases of a test: those that are tried on every machine, and those that only a GPU tries unless they are asked
    for, which are one skipped case where there is none."""
    found, rest = [pytest.param(*each) for each in everywhere], list(on_gpu)
    if TRIES_ALL:
        return found + [pytest.param(*each, marks=pytest.mark.gpu) for each in rest]
    skip = pytest.mark.gpu, pytest.mark.skip(f"{counted(len(rest), 'case')}: {NO_GPU}")
    return found + [pytest.param(*each, marks=skip, id="gpu") for each in rest[:1]]


def new_model(
    dtype: str,
    config: dict[str, Any] = CONFIG,
    device: torch.device | str = DEVICE,
    weights: WeightFormat = "stored",
) -> LoadedModel:
    """A model with random weights, which are drawn on the CPU and therefore the same on every device."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config), "utf-8")
        return load(ModelSpec(f"shape:{path}", dtype=dtype, device=str(device), weights=weights))  # type: ignore[arg-type]


@cache
def model_of(dtype: str, device: str = str(DEVICE)) -> LoadedModel:
    """The usual model, loaded once."""
    return new_model(dtype, device=device)


def token_ids(count: int) -> tuple[int, ...]:
    """Random token ids, the same at every call."""
    made = torch.Generator().manual_seed(1)
    return tuple(torch.randint(3, VOCABULARY, (count,), generator=made).tolist())
