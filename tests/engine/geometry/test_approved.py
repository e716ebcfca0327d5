"""What is read of configs, layer by layer: those of tiny models, and those that say nothing but their family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import astuple, replace

from engine.errors import InputError
from engine.geometry.config import ALIASES, DECODER_ALIASES
from engine.geometry.dimensions import DTYPE_BYTES, CacheGeometry, LayerGeometry, known_sum
from engine.geometry.families import FAMILY_DEFAULTS
from engine.spec.edit import runs_of
from tests.engine.geometry.tiny_configs import BASE, TINY
from tests.engine.told import approve, told

OTHERS: dict[str, dict[str, Any]] = {
    "mixtral: one layer for itself": {
        **BASE, "model_type": "mixtral", "per_layer_config": {"02": {"head_dim": 32}, "x": {"head_dim": 64}, "3": None},
    },
    "llama: chunked": {**BASE, "model_type": "llama", "attention_chunk_size": 16},
    "glm_moe_dsa": {**BASE, "model_type": "glm_moe_dsa", "kv_lora_rank": 16, "qk_rope_head_dim": 8,
                    "index_head_dim": 24},
    "gpt_bigcode: multi head": {"model_type": "gpt_bigcode", "multi_query": False, "n_layer": 2},
    "gemma4_text: half of it": {"model_type": "gemma4_text", "num_hidden_layers": 3, "num_key_value_heads": 2,
                                "num_global_key_value_heads": 1},
    "gemma4_text: listed": {"model_type": "gemma4_text", "num_hidden_layers": 2,
                            "layer_types": ["full_attention", "sliding_attention"]},
    "nemotron_h: letters": {**BASE, "model_type": "nemotron_h", "hybrid_override_pattern": "M*E-"},
    "falcon_h1: no width": {"model_type": "falcon_h1", "num_hidden_layers": 1, "mamba_d_ssm": None},
    "lfm2: no width": {**BASE, "model_type": "lfm2", "full_attn_idxs": [0, 3], "conv_L_cache": None},
    "kimi_linear: no width": {"model_type": "kimi_linear", "num_hidden_layers": 5, "linear_num_heads": None},
    "kimi_linear: nested": {
        "model_type": "kimi_linear", "num_hidden_layers": 3,
        "linear_attn_config": {"full_attn_layers": [2], "num_heads": 3, "head_dim": 5, "short_conv_kernel_size": 7},
    },
    "mamba: its own width": {"model_type": "mamba", "num_hidden_layers": 1, "intermediate_size": 100},
    "zamba2: of its width": {**BASE, "model_type": "zamba2", "layer_types": ["linear_attention", "hybrid"] * 2},
    "unknown": {**BASE, "layer_types": ["attention", "mamba"] * 2},
    "t5": {"model_type": "t5", "num_layers": 3, "num_decoder_layers": 2, "n_positions": 512},
    "led": {"model_type": "led", "encoder_layers": 3, "decoder_layers": 2, "decoder_attention_heads": 8,
            "max_encoder_position_embeddings": 4096, "max_decoder_position_embeddings": 256},
    "t5gemma": {"model_type": "t5gemma", "decoder": {"model_type": "t5_gemma_module", "num_hidden_layers": 2}},
    "nested twice": {"model_type": "x", "architectures": ["X"],
                     "thinker_config": {"text_config": {**BASE, "model_type": ""}}},
}  # fmt: skip


def test_geometries_are_told_as_approved() -> None:
    tiny = {name: {**config, "model_type": name.split(":")[0]} for name, (config, _) in TINY.items()}
    silent = {f"{family} of its name alone": {"model_type": family} for family in FAMILY_DEFAULTS}
    lines = [line for name, config in {**tiny, **silent, **OTHERS}.items() for line in of_config(name, config)]
    approve(Path(__file__).parent / "approved" / "geometries.txt", [*lines, f"bytes of {dict(DTYPE_BYTES)}"])


def of_config(name: str, config: dict[str, Any]) -> list[str]:
    try:
        found = CacheGeometry.from_config(config)
    except InputError as refusal:
        return [f"{name}: {refusal}"]
    of_whole = ("num_layers", "num_blocks", "has_encoder", "num_heads", "num_kv_heads", "head_dim", "is_latent")
    sizes = {what: getattr(found, what) for what in (*of_whole, "is_uniform", "elements_per_token")}
    state = known_sum(layer.state_bytes("bfloat16") for layer in found.layers)
    sizes |= {"bytes": found.bytes_per_token("bfloat16"), "state": state}
    stated = ("architecture", "model_type", "hidden_size", "vocab_size", "max_length", "max_source_length")
    lines = [f"{name}: {told([getattr(found, what) for what in stated])} {told([*sizes.values()])}"]
    for kind, layers in found.layers_by_kind().items():
        for alone in dict.fromkeys(replace(layer, index=0) for layer in layers):
            same = [layer for layer in layers if replace(layer, index=0) == alone]
            lines.append(
                f"  {runs_of(layer.index for layer in same)}: {kind} {told([*astuple(alone)[2:]])}, {_numbers(alone)}"
            )
    return lines


def _numbers(layer: LayerGeometry) -> str:
    return f"{layer.elements_per_token} a token, state {layer.state_bytes('float16')}"


@pytest.mark.parametrize(("name", "other"), [(name, other) for name, others in ALIASES.items() for other in others])
def test_a_size_is_found_under_each_of_its_names(name: str, other: str) -> None:
    value = ["full_attention"] * 3 if name == "layer_types" else 4
    sizes = {**BASE, "num_hidden_layers": 3, "head_dim": 8, name: value}
    renamed = {other: sizes[name], **{key: size for key, size in sizes.items() if key != name}}
    found = CacheGeometry.from_config({**renamed, "model_type": "llama"})
    assert found == CacheGeometry.from_config({**sizes, "model_type": "llama"})
    assert CacheGeometry.from_config({**sizes, "model_type": "llama", other: 1}) == found, "its own name comes first"


@pytest.mark.parametrize(("name", "others"), DECODER_ALIASES.items())
def test_the_decoder_of_an_encoder_decoder_has_sizes_of_its_own(name: str, others: tuple[str, ...]) -> None:
    config = {"model_type": "bart", name: 3, **{other: 8 << at for at, other in enumerate(others)}}
    expected = CacheGeometry.from_config({"model_type": "bart", name: 8})
    assert CacheGeometry.from_config(config) == expected


def test_layers_are_named_by_what_they_are() -> None:
    plain, cross = (CacheGeometry.from_config({"model_type": family, "num_layers": 2}) for family in ("llama", "t5"))
    assert cross.num_blocks == 2
    assert [cross.layer_label(index) for index in range(5)] == ["L0", "L1", "X0", "X1", "L4"]
    assert [geometry.cross_block(2) for geometry in (plain, cross)] == [None, 0]
    assert cross.cross_block(-1) is None


def test_what_makes_layers_differ() -> None:
    """Any of its sizes: a model is uniform where all are alike."""
    first = LayerGeometry(0, "sliding", 2, 8, 8, 4, 16)
    for other in ({"kind": "full"}, {"num_kv_heads": 1}, {"key_dim": 4}, {"value_dim": 4}, {"num_heads": 2},
                  {"window": 8}):  # fmt: skip
        assert not CacheGeometry("a", "b", (first, replace(first, index=1, **other))).is_uniform
    assert CacheGeometry("a", "b", (first, replace(first, index=1))).is_uniform
