from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engine.geometry.dimensions import CacheGeometry
from engine.predict.bytes import PUBLISHED, PublishedModel

# What a config has beside the numbers that the cache depends on
_REST = {
    "Llama 3.1 8B": {"vocab_size": 128_256, "intermediate_size": 14_336},
    "Qwen 3 8B": {"vocab_size": 151_936, "intermediate_size": 12_288},
    "Mistral 7B v0.3": {"vocab_size": 32_768, "intermediate_size": 14_336},
    "DeepSeek V3": {},
}


@pytest.mark.parametrize("model", [model for model in PUBLISHED if model.dtype == "bfloat16"], ids=lambda m: m.name)
def test_weights_and_geometry_are_those_of_transformers_model(model: PublishedModel) -> None:
    config = AutoConfig.for_model(**model.config, **_REST[model.name])
    assert CacheGeometry.from_config(config).layers == model.geometry.layers
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config)
    assert sum(weight.numel() for weight in built.parameters()) == model.num_parameters


def test_deepseek_keeps_a_latent_and_a_rotary_key_in_every_layer() -> None:
    model = PUBLISHED[-1]
    layers = model.geometry.layers
    assert [(layer.kind, layer.num_kv_heads, layer.key_dim, layer.value_dim) for layer in layers] == [
        ("latent", 1, 512, 64)
    ] * 61
    assert model.geometry.bytes_per_token("bfloat16") == 70_272, "as published for it"
    assert model.weight_bytes == model.num_parameters, "8 bits each"
