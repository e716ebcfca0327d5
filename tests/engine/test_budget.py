"""Predicted bytes against published figures, against real caches, and what fits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from engine.budget import (
    CODECS,
    BudgetSpec,
    Codec,
    held_tokens,
    predict,
    reserved_tokens,
    tokens_that_fit,
    tutorial_table,
)
from engine.errors import InputError
from engine.geometry import CacheGeometry

MIB = 1024**2
GIB = 1024**3
LLAMA_8B = CacheGeometry.uniform(32, 8, 128)
GEMMA = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 62,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "hidden_size": 5376,
    "sliding_window": 1024,
}


def total(geometry: CacheGeometry, **fields: Any) -> int:
    return predict(geometry, BudgetSpec(**fields)).total_bytes


# --- published per-token sizes, 16 bit --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "kv_heads", "dim", "num_bytes"),
    [
        (12, 12, 64, 36_864),
        (24, 16, 64, 98_304),
        (36, 20, 64, 184_320),
        (48, 25, 64, 307_200),
        (30, 3, 64, 23_040),
        (32, 32, 128, 524_288),
        (40, 40, 128, 819_200),
        (32, 8, 128, 131_072),
        (80, 8, 128, 327_680),
        (126, 8, 128, 516_096),
        (16, 8, 64, 32_768),
        (28, 8, 128, 114_688),
        (24, 2, 64, 12_288),
        (28, 4, 128, 57_344),
        (36, 8, 128, 147_456),
        (24, 8, 64, 49_152),
        (36, 8, 64, 73_728),
    ],
)
def test_bytes_per_token(layers: int, kv_heads: int, dim: int, num_bytes: int) -> None:
    geometry = CacheGeometry.uniform(layers, kv_heads, dim)
    assert predict(geometry, BudgetSpec()).bytes_per_token == num_bytes


@pytest.mark.parametrize(
    ("config", "num_bytes"),
    [
        ({"model_type": "deepseek_v3"}, 70_272),
        ({"model_type": "deepseek_v2", "num_hidden_layers": 60}, 69_120),
        ({"model_type": "falcon"}, 8_192),
        ({"model_type": "gpt2"}, 36_864),
        ({"model_type": "gpt_oss"}, 73_728),
    ],
)
def test_bytes_per_token_of_named_families(config: dict[str, Any], num_bytes: int) -> None:
    geometry = CacheGeometry.from_config(config)
    assert predict(geometry, BudgetSpec()).bytes_per_token == num_bytes


def test_latent_attention_against_its_expansion() -> None:
    expanded = 61 * 128 * (128 + 64 + 128) * 2
    assert expanded == 4_997_120
    assert (
        predict(CacheGeometry.from_config({"model_type": "deepseek_v3"}), BudgetSpec()).bytes_per_token
        == 61 * (512 + 64) * 2
    )


def test_published_totals() -> None:
    assert total(CacheGeometry.uniform(80, 8, 128), context=10**6) == 327_680_000_000
    opt_13b = total(CacheGeometry.uniform(40, 40, 128), context=2048)
    assert opt_13b == pytest.approx(1.6e9, rel=0.05)
    gpt_oss_120b = CacheGeometry.uniform(36, 8, 64)
    assert total(gpt_oss_120b, context=131_072) == pytest.approx(9.66e9, rel=1e-3)
    assert total(gpt_oss_120b, context=131_072, dtype="float8_e4m3fn") == pytest.approx(4.83e9, rel=1e-3)


def test_windows_of_gemma_3_27b() -> None:
    geometry = CacheGeometry.from_config(GEMMA)
    assert {kind: len(layers) for kind, layers in geometry.layers_by_kind().items()} == {"sliding": 52, "full": 10}
    assert total(geometry, mode="static", context=8192) == 1056 * MIB
    assert total(geometry, mode="growing", context=8192) == 3968 * MIB
    assert total(geometry, mode="dynamic", context=8192) == 1056 * MIB - 52 * 8192  # W - 1 tokens in 52 layers


def test_the_tutorials_table() -> None:
    rows = tutorial_table()
    assert [(row.model, row.context, round(row.megabytes, 1)) for row in rows] == [
        ("GPT-2 Small", 512, 18.9),
        ("GPT-2 Small", 2048, 75.5),
        ("GPT-2 Small", 8192, 302.0),
        ("GPT-2 Large", 512, 94.4),
        ("GPT-2 Large", 2048, 377.5),
        ("GPT-2 Large", 8192, 1509.9),
        ("LLaMA-7B", 512, 268.4),
        ("LLaMA-7B", 2048, 1073.7),
        ("LLaMA-7B", 8192, 4295.0),
    ]


def test_the_tutorials_claim_about_7b_at_1024_tokens() -> None:
    geometry = CacheGeometry.uniform(32, 32, 128)
    assert total(geometry, context=1024, dtype="float16") == 536_870_912
    assert total(geometry, context=1024, dtype="float32") == 1_073_741_824


# --- modes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "held", "reserved"),
    [
        ({"mode": "none"}, 0, 0),
        ({"mode": "allocated"}, 0, 100),
        ({"mode": "allocated", "max_length": 1000}, 0, 1000),
        ({"mode": "dynamic"}, 100, 100),
        ({"mode": "growing"}, 100, 128),
        ({"mode": "growing", "context": 3}, 3, 64),
        ({"mode": "growing", "context": 128}, 128, 128),
        ({"mode": "growing", "context": 129}, 129, 256),
        ({"mode": "static"}, 100, 100),
        ({"mode": "static", "max_length": 1000}, 100, 1000),
        ({"mode": "paged"}, 100, 112),
        ({"mode": "paged", "page_size": 1}, 100, 100),
        ({"mode": "paged", "page_size": 128}, 100, 128),
        ({"mode": "host", "page_size": 64}, 100, 128),
        ({"mode": "sliding", "window": 32}, 32, 32),
        ({"mode": "sliding", "window": 320}, 100, 100),
    ],
)
def test_tokens_held_and_reserved(fields: dict[str, Any], held: int, reserved: int) -> None:
    spec = BudgetSpec(**{"context": 100, **fields})
    layer = LLAMA_8B.layers[0]
    assert (held_tokens(layer, spec), reserved_tokens(layer, spec)) == (held, reserved)
    budget = predict(LLAMA_8B, spec)
    assert budget.stored_bytes_per_sequence == held * 131_072
    assert budget.reserved_bytes_per_sequence == reserved * 131_072


@pytest.mark.parametrize(
    ("fields", "held", "reserved"),
    [
        ({"mode": "dynamic"}, 31, 31),
        ({"mode": "dynamic", "context": 31}, 31, 31),
        ({"mode": "dynamic", "context": 32}, 31, 31),
        ({"mode": "growing"}, 100, 128),
        ({"mode": "static", "max_length": 200}, 32, 32),
        ({"mode": "static", "max_length": 20, "context": 20}, 20, 20),
        ({"mode": "paged", "page_size": 8}, 31, 40),
        ({"mode": "paged", "page_size": 8, "context": 9}, 9, 16),
        ({"mode": "sliding", "window": 8}, 8, 8),
        ({"mode": "sliding", "window": 64}, 31, 31),
    ],
)
def test_tokens_of_a_layer_with_a_window(fields: dict[str, Any], held: int, reserved: int) -> None:
    config = {"model_type": "mistral", "num_hidden_layers": 1, "sliding_window": 32}
    layer = CacheGeometry.from_config(config).layers[0]
    spec = BudgetSpec(**{"context": 100, **fields})
    assert (held_tokens(layer, spec), reserved_tokens(layer, spec)) == (held, reserved)


def test_nothing_is_kept_without_a_cache() -> None:
    budget = predict(CacheGeometry.from_config({"model_type": "jamba"}), BudgetSpec("none", 100))
    assert (budget.bytes_per_token, budget.bytes_per_sequence, budget.total_bytes) == (0, 0, 0)


def test_batches_multiply_and_kinds_add_up() -> None:
    geometry = CacheGeometry.from_config(GEMMA)
    one, five = predict(geometry, BudgetSpec(context=5000)), predict(geometry, BudgetSpec(context=5000, batch=5))
    assert five.total_bytes == 5 * one.total_bytes == 5 * one.bytes_per_sequence
    assert sum(kind.reserved_bytes for kind in one.kinds) == one.reserved_bytes_per_sequence
    assert [(kind.kind, kind.num_layers) for kind in one.kinds] == [("sliding", 52), ("full", 10)]


def test_states_are_constant_and_shared_layers_are_free() -> None:
    mamba = CacheGeometry.from_config({"model_type": "mamba"})
    short, long = predict(mamba, BudgetSpec(context=1)), predict(mamba, BudgetSpec(context=10**6))
    assert short.total_bytes == long.total_bytes == 32 * 1536 * (4 * 2 + 16 * 4)
    assert long.bytes_per_token == 0
    unknown = {"num_hidden_layers": 1, "layer_types": ["linear_attention"]}
    assert predict(CacheGeometry.from_config(unknown), BudgetSpec()).state_bytes_per_sequence is None
    gemma3n = predict(CacheGeometry.from_config({"model_type": "gemma3n_text"}), BudgetSpec(context=100))
    shared = next(kind for kind in gemma3n.kinds if kind.kind == "shared")
    assert (shared.num_layers, shared.reserved_bytes) == (15, 0)
    assert gemma3n.bytes_per_token == 20 * 2 * 2 * 256 * 2


def test_full_pages_are_written_through_to_the_host() -> None:
    budget = predict(LLAMA_8B, BudgetSpec("host", 100, 3, page_size=16))
    assert budget.host_bytes == 3 * 96 * 131_072
    assert predict(LLAMA_8B, BudgetSpec("paged", 100, 3)).host_bytes == 0


# --- the prediction against caches that exist -------------------------------------------------------------------------

TINY = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2}  # fmt: skip
REAL = {
    "llama": TINY,
    "gemma3_text": {**TINY, "head_dim": 16, "sliding_window": 8, "num_hidden_layers": 6},
    "lfm2": {**TINY, "full_attn_idxs": [1, 3]},
}


def _bytes_of(cache: Any) -> int:
    tensors = []
    for layer in cache.layers:
        tensors += [tensor for name in ("keys", "values") if (tensor := getattr(layer, name, None)) is not None]
        tensors += [state for state in getattr(layer, "conv_states", {}).values() if state is not None]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("family", REAL)
@pytest.mark.parametrize("num_tokens", [3, 7, 8, 20])
def test_prediction_equals_the_real_cache(family: str, num_tokens: int) -> None:
    config = CONFIG_MAPPING[family](**REAL[family])
    model = AutoModelForCausalLM.from_config(config).float().eval()
    geometry = CacheGeometry.from_config(config)
    tokens = torch.full((2, num_tokens), 5)
    dynamic, static = DynamicCache(config=config), StaticCache(config=config, max_cache_len=32)
    with torch.no_grad():
        model(tokens, past_key_values=dynamic)
        model(tokens, past_key_values=static)
    spec = BudgetSpec("dynamic", num_tokens, 2, "float32")
    assert predict(geometry, spec).total_bytes == _bytes_of(dynamic)
    assert predict(geometry, replace(spec, mode="static", max_length=32)).total_bytes == _bytes_of(static)


# --- codecs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dim", "bits"),
    [
        ("exact", 128, 16),
        ("fp8", 128, 8),
        ("fp8-token-head", 128, 8.25),
        ("fp8-token-head", 64, 8.5),
        ("fp8-max", 128, 8.25),
        ("fp8-max-e8m0", 128, 8.0625),
        ("int8", 128, 8.125),
        ("kivi-2", 128, 2.5),
        ("kivi-4", 128, 4.5),
        ("kivi-8", 128, 8.5),
    ],
)
def test_effective_bits(name: str, dim: int, bits: float) -> None:
    assert CODECS[name].effective_bits(dim, 16) == bits


@pytest.mark.parametrize(("code_bits", "group", "bits"), [(2, 32, 3.0), (2, 128, 2.25), (4, 32, 5.0), (4, 64, 4.5)])
def test_effective_bits_by_group(code_bits: int, group: int, bits: float) -> None:
    assert Codec("kivi", code_bits, 32, group).effective_bits(128, 16) == bits


def test_kivi_leaves_the_latest_tokens_exact() -> None:
    assert CODECS["kivi-2"].num_coded(300) == (256, 172)
    assert CODECS["kivi-2"].num_coded(127) == (0, 0)
    geometry = CacheGeometry.uniform(1, 1, 128)
    expected = (256 + 172) * 128 * 2.5 / 8 + (44 + 128) * 128 * 2
    assert total(geometry, context=300, codec=CODECS["kivi-2"]) == expected


def test_codes_save_what_their_bits_say() -> None:
    exact = total(LLAMA_8B, context=4096)
    assert total(LLAMA_8B, context=4096, codec=CODECS["fp8"]) * 2 == exact
    assert total(LLAMA_8B, context=4096, codec=CODECS["int8"]) == exact * 8.125 / 16
    assert predict(LLAMA_8B, BudgetSpec(codec=CODECS["kivi-4"])).bytes_per_token == 131_072 * 4.5 / 16


# --- what fits --------------------------------------------------------------------------------------------------------


def test_published_capacity_of_qwen3_4b() -> None:
    geometry = CacheGeometry.uniform(36, 8, 128)
    available = int(11.47 * GIB)
    assert tokens_that_fit(geometry, BudgetSpec(), available) == 83_521  # 11.47 is itself rounded: 83,521.99
    paged = tokens_that_fit(geometry, BudgetSpec("paged"), available)
    assert paged == 83_520
    assert paged == pytest.approx(83_488, rel=1e-3)  # what a serving engine reported on that memory
    assert tokens_that_fit(geometry, BudgetSpec(dtype="float8_e4m3fn"), available) == pytest.approx(166_992, rel=1e-3)


@given(
    st.sampled_from(["dynamic", "growing", "static", "paged", "host"]), st.integers(0, 10**9), st.integers(1, 5),
    st.sampled_from([1, 16, 128]),
)  # fmt: skip
def test_what_fits_fits_and_one_more_does_not(mode: Any, available: int, batch: int, page_size: int) -> None:
    spec = BudgetSpec(mode, batch=batch, page_size=page_size)
    fitting = tokens_that_fit(LLAMA_8B, spec, available)
    assert fitting is not None
    assert fitting == 0 or predict(LLAMA_8B, replace(spec, context=fitting)).total_bytes <= available
    assert predict(LLAMA_8B, replace(spec, context=fitting + 1)).total_bytes > available


def test_some_caches_hold_any_context() -> None:
    assert tokens_that_fit(LLAMA_8B, BudgetSpec("none"), 0) is None
    assert tokens_that_fit(LLAMA_8B, BudgetSpec("sliding", window=10), 10 * 131_072) is None
    assert tokens_that_fit(LLAMA_8B, BudgetSpec("sliding", window=10), 9 * 131_072) == 9
    assert tokens_that_fit(CacheGeometry.from_config({"model_type": "mamba"}), BudgetSpec(), GIB) is None
    assert tokens_that_fit(CacheGeometry.from_config({"model_type": "mamba"}), BudgetSpec(), 10) == 0


@given(st.integers(1, 5000), st.sampled_from([1, 16, 128]))
def test_pages_waste_less_than_a_page(context: int, page_size: int) -> None:
    budget = predict(LLAMA_8B, BudgetSpec("paged", context, page_size=page_size))
    waste = budget.reserved_bytes_per_sequence - budget.stored_bytes_per_sequence
    assert 0 <= waste < page_size * 131_072
    assert budget.reserved_bytes_per_sequence == math.ceil(context / page_size) * page_size * 131_072


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"mode": "warp"}, "warp"),
        ({"context": 0}, "context"),
        ({"context": -1}, "-1"),
        ({"context": 10**13}, "10000000000000"),
        ({"batch": 0}, "batch"),
        ({"batch": True}, "batch"),
        ({"page_size": 0}, "page_size"),
        ({"dtype": "int3"}, "int3"),
        ({"mode": "static", "context": 100, "max_length": 99}, "99"),
        ({"mode": "sliding"}, "window"),
    ],
)
def test_impossible_questions_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        BudgetSpec(**fields)


@pytest.mark.parametrize("fields", [{"code_bits": 0}, {"code_bits": 4, "group": -1}, {"residual": -1}])
def test_impossible_codecs_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Codec("broken", **fields)


def test_negative_memory_is_refused() -> None:
    with pytest.raises(InputError, match="-1"):
        tokens_that_fit(LLAMA_8B, BudgetSpec(), -1)
