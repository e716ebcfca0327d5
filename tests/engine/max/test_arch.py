"""Parameters from the config of a model."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import InputError
from engine.max import (
    ArchConfigWithAttentionKVCache,
    KVCacheConfig,
    KVCacheQuantizationConfig,
)
from tests.engine.max.parameters import gpus

GPT2_CONFIG = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}


def small(**more: Any) -> ArchConfigWithAttentionKVCache:
    return ArchConfigWithAttentionKVCache("float32", huggingface_config=GPT2_CONFIG, **more)


def test_gpt2_as_the_tutorial_serves_it() -> None:
    arch = small()
    assert (arch.num_layers, arch.num_key_value_heads, arch.head_dim, arch.model_max_seq_len) == (12, 12, 64, 1024)
    params = arch.get_kv_params()
    assert params == arch.get_kv_params()
    assert params.bytes_per_block == 9_437_184
    assert params.enable_prefix_caching


def test_the_cache_dtype_goes_before_the_models() -> None:
    assert small().get_kv_params().dtype == "float32"
    assert small(cache_dtype="bfloat16").get_kv_params().dtype == "bfloat16"


@pytest.mark.parametrize(("wanted", "expected"), [(None, 1024), (512, 512), (1024, 1024), (0, 0)])
def test_get_max_seq_len(wanted: int | None, expected: int) -> None:
    assert small(user_provided_max_length=wanted).get_max_seq_len() == expected


@pytest.mark.parametrize("wanted", [1025, -1])
def test_get_max_seq_len_refuses_what_the_model_was_not_built_for(wanted: int) -> None:
    with pytest.raises(ValueError, match=rf"{wanted}.*1024"):
        small(user_provided_max_length=wanted).get_max_seq_len()


def test_cache_config_defaults() -> None:
    config = KVCacheConfig()
    assert (config.kv_cache_page_size, config.enable_prefix_caching) == (128, True)
    assert config.kv_connector_config is None
    assert KVCacheConfig(kv_connector="local").host_kvcache_swap_space_gb == 50


def test_any_hugging_face_config_gives_parameters() -> None:
    config = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
              "num_key_value_heads": 8, "max_position_embeddings": 131072}  # fmt: skip
    arch = ArchConfigWithAttentionKVCache("bfloat16", devices=list(gpus(2)), huggingface_config=config)
    assert arch.get_kv_params().shape_per_block == [2, 32, 128, 4, 128]
    assert arch.get_max_seq_len() == 131072


def test_latent_attention_gives_mla_parameters() -> None:
    arch = ArchConfigWithAttentionKVCache(
        "bfloat16", devices=list(gpus(8)), huggingface_config={"model_type": "deepseek_v3"}
    )
    params = arch.get_kv_params()
    assert (params.is_mla, params.num_q_heads, params.num_q_heads_per_device) == (True, 128, 16)
    assert params.shape_per_block == [1, 61, 128, 1, 576]
    assert params.bytes_per_block == 71_958_528


def test_scales_reach_the_parameters_of_any_model() -> None:
    arch = ArchConfigWithAttentionKVCache(
        "float8_e4m3fn", huggingface_config={"model_type": "llama"}, kvcache_quant_config=KVCacheQuantizationConfig()
    )
    assert arch.get_kv_params().quantized_kv_cache


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "mamba"}, "no K and V"),
        ({"model_type": "gemma4_text"}, "2 different shapes"),
        (None, "pass one"),
    ],
)
def test_models_that_one_set_of_parameters_cannot_describe(config: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        ArchConfigWithAttentionKVCache("bfloat16", huggingface_config=config).get_kv_params()


def test_a_model_without_a_maximum_length_takes_the_users() -> None:
    bloom = {"model_type": "bloom"}
    assert (
        ArchConfigWithAttentionKVCache(
            "bfloat16", user_provided_max_length=99, huggingface_config=bloom
        ).get_max_seq_len()
        == 99
    )
    with pytest.raises(InputError, match="maximum length"):
        ArchConfigWithAttentionKVCache("bfloat16", huggingface_config=bloom).get_max_seq_len()
