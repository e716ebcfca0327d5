"""The models that are tried on a device, of random weights, the same on every device; and what comes of a check."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Literal

import torch

from engine.model.loader import LoadedModel, load
from engine.spec.model import ModelSpec

Verdict = Literal["ok", "FAILED", "not here", "not done"]

VOCABULARY = 2048
# Heads, groups and widths of a real model, few layers: what is wrong shows in one of them as in thirty. With the usual
# deviation of 0.02 attention would be nearly uniform, and values half as large again within what bfloat16 rounds.
CONFIG: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4, "hidden_size": 576,
    "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "intermediate_size": 1536,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192, "initializer_range": 0.05, "tie_word_embeddings": True, "eos_token_id": None,
}  # fmt: skip
# windows, and layers that read the pages of another one
SHARING_CONFIG: dict[str, Any] = {
    "model_type": "gemma3n_text", "architectures": ["Gemma3nForCausalLM"], "num_hidden_layers": 4, "hidden_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512,
    "vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 32,
    "max_position_embeddings": 8192, "initializer_range": 0.05, "sliding_window": 24, "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "laurel_rank": 16, "altup_num_inputs": 2,
    "activation_sparsity_pattern": None, "eos_token_id": None,
}  # fmt: skip


def model_on(device: torch.device, dtype: str, config: dict[str, Any] = CONFIG) -> LoadedModel:
    """A model of a config, whose weights are drawn on the CPU."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config), "utf-8")
        return load(ModelSpec(f"shape:{path}", dtype=dtype, device=str(device)))  # type: ignore[arg-type]


def token_ids(count: int) -> tuple[int, ...]:
    made = torch.Generator().manual_seed(1)
    return tuple(torch.randint(3, VOCABULARY, (count,), generator=made).tolist())
