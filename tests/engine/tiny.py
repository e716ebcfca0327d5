"""Tiny random models of many architectures: a config each, small enough to build in milliseconds."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from engine.model.loader import LoadedModel, load
from engine.spec.model import ModelSpec

COMMON: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {"n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": 128},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": 8},
    "gemma2": {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
    "gemma3_text": {"head_dim": 16, "sliding_window": 8, "num_hidden_layers": 4, "sliding_window_pattern": 2},
    "phi3": {},
    "gpt_neox": {},
    "gpt_oss": {"head_dim": 16, "sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
    },
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "bloom": {"n_layer": 2, "n_head": 4},
    "falcon": {"multi_query": True, "new_decoder_architecture": False},
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False, "conv_L_cache": 3},
    "mamba": {"state_size": 8, "conv_kernel": 4, "expand": 2, "time_step_rank": 4},
    "olmo2": {},
    "gptj": {"n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": 128, "rotary_dim": 8},
    "starcoder2": {},
    "cohere": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "cohere2": {"sliding_window": 8, "num_hidden_layers": 4},
    "smollm3": {},
    "granite": {},
    "stablelm": {},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 128},
}

# whose last layers read the K and V of others; not among those that every promise is tried on
SHARING: dict[str, dict[str, Any]] = {
    "gemma3n_text": {
        "head_dim": 16, "sliding_window": 8, "num_hidden_layers": 4, "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2, "laurel_rank": 8, "altup_num_inputs": 2,
        "vocab_size_per_layer_input": 128, "hidden_size_per_layer_input": 8, "activation_sparsity_pattern": None,
    },
}  # fmt: skip

# an encoder of three layers and a decoder of two: nothing may take one for the other
_LIKE_T5: dict[str, Any] = {
    "vocab_size": 128, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16, "tie_word_embeddings": False,
    "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
_LIKE_BART: dict[str, Any] = {
    "vocab_size": 128, "d_model": 64, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "max_position_embeddings": 64,
    "scale_embedding": True, "tie_word_embeddings": False, "decoder_start_token_id": 2, "bos_token_id": 0,
    "pad_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
# its norms scale by one more than their weights: with larger ones an encoder rounds more than a trained one does
DEVIATIONS = {"t5gemma": 0.1}
_LIKE_GEMMA: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "query_pre_attn_scalar": 16, "max_position_embeddings": 64, "sliding_window": 8,
    "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
ENCODER_DECODERS: dict[str, dict[str, Any]] = {
    "t5": _LIKE_T5,
    "mt5": _LIKE_T5,
    "umt5": _LIKE_T5,
    "bart": _LIKE_BART,
    "mbart": _LIKE_BART,
    "plbart": _LIKE_BART,
    "pegasus": _LIKE_BART,
    "marian": _LIKE_BART,
    "blenderbot": _LIKE_BART,
    "blenderbot-small": _LIKE_BART,
    "m2m_100": _LIKE_BART,
    "longt5": {**_LIKE_T5, "local_radius": 4},
    "led": {
        **_LIKE_BART,
        "attention_window": [4, 4, 4],
        "max_encoder_position_embeddings": 96,
        "max_decoder_position_embeddings": 64,
    },
    "t5gemma": {
        "encoder": {**_LIKE_GEMMA, "num_hidden_layers": 3},
        "decoder": {**_LIKE_GEMMA, "num_hidden_layers": 2},
        "vocab_size": 128,
        "tie_word_embeddings": False,
    },
}


def config_dict(name: str) -> dict[str, Any]:
    """A config.json of that architecture, tiny."""
    sizes = ENCODER_DECODERS[name] if name in ENCODER_DECODERS else {**COMMON, **(CONFIGS | SHARING)[name]}
    config = AutoConfig.for_model(name, **sizes)
    return {**config.to_dict(), "model_type": name}


def write_config(name: str, folder: Path) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config_dict(name), default=str), "utf-8")
    return path


@cache
def model_of(name: str, dtype: str = "float32") -> LoadedModel:
    """A tiny random model, loaded the way a user's `shape:` model is, on one thread."""
    return random_model(config_dict(name), DEVIATIONS.get(name, 0.4 if name in ENCODER_DECODERS else 0.15), dtype)


@cache
def tiniest_model() -> LoadedModel:
    """One layer of two heads that share K and V: a step costs little more than the engine itself does."""
    one = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 8}
    config = AutoConfig.for_model("llama", **{**COMMON, **one, "num_attention_heads": 2, "num_key_value_heads": 1})
    return random_model({**config.to_dict(), "model_type": "llama"}, 0.5)


@cache
def uneven_model() -> LoadedModel:
    """No two of its sizes are the same: three layers, six heads that share two of K and V, 16 channels in each."""
    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "head_dim": 16}
    config = AutoConfig.for_model("llama", **{**COMMON, **sizes})
    return random_model({**config.to_dict(), "model_type": "llama"}, 0.3)


def random_model(config: dict[str, Any], deviation: float, dtype: str = "float32") -> LoadedModel:
    """The usual deviation of 0.02 makes attention nearly uniform and logits nearly equal: a wrong cache would hardly
    show."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config, default=str), "utf-8")
        model = load(ModelSpec(f"shape:{path}", dtype=dtype, device="cpu", num_threads=1))
    with torch.no_grad():
        generator = torch.Generator().manual_seed(7)
        for parameter in model.model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, deviation, generator=generator)
    return model


def prompt_ids(length: int, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, 120, (length,), generator=generator).tolist())
