"""Predicted bytes against published figures, and what fits; `test_cache_bytes` holds them against real caches."""

from __future__ import annotations

from typing import Any

import pytest

from engine.geometry.dimensions import CacheGeometry
from engine.predict.bytes import BudgetSpec, CacheFormula, budget_of, tutorial_table
from engine.spec.codec import Coding
from tests.engine.predict.shapes import LLAMA_8B, spec_of, total

MIB = 1024**2
GEMMA = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 62,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "hidden_size": 5376,
    "sliding_window": 1024,
}


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
    assert budget_of(geometry, BudgetSpec()).bytes_per_token == num_bytes


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
    assert budget_of(geometry, BudgetSpec()).bytes_per_token == num_bytes


def test_latent_attention_against_its_expansion() -> None:
    expanded = 61 * 128 * (128 + 64 + 128) * 2
    assert expanded == 4_997_120
    assert (
        budget_of(CacheGeometry.from_config({"model_type": "deepseek_v3"}), BudgetSpec()).bytes_per_token
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
    assert total(geometry, "static", context=8192) == 1056 * MIB
    assert total(geometry, "growing", context=8192) == 3968 * MIB
    dynamic = budget_of(geometry, spec_of(context=8192))
    per_row = 2 * 16 * 128 * 2
    assert dynamic.stored_bytes_per_sequence == 1056 * MIB - 52 * per_row  # W - 1 tokens in 52 layers
    assert dynamic.total_bytes == 1056 * MIB  # the row that left the window is still in the same storage


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
    ("name", "fields", "held", "reserved"),
    [
        ("none", {}, 0, 0),
        ("allocated", {}, 0, 2048),
        ("dynamic", {}, 100, 100),
        ("growing", {}, 100, 128),
        ("growing", {"context": 3}, 3, 64),
        ("growing", {"context": 128}, 128, 128),
        ("growing", {"context": 129}, 129, 256),
        ("static", {}, 100, 2048),
        ("static", {"context": 3000}, 3000, 3000),
        ("static", {"max_length": 1000}, 100, 1000),
        ("paged", {}, 100, 112),
        ("paged", {"page_size": 1}, 100, 100),
        ("paged", {"page_size": 128}, 100, 128),
        ("offloaded", {"page_size": 64}, 100, 128),
        ("sliding", {"window": 320}, 100, 128),
    ],
)
def test_tokens_held_and_reserved(name: str, fields: dict[str, Any], held: int, reserved: int) -> None:
    budget = budget_of(LLAMA_8B, spec_of(name, **{"context": 100, **fields}))
    assert budget.stored_bytes_per_sequence == held * 131_072
    assert budget.reserved_bytes_per_sequence == reserved * 131_072


def test_rows_kept_by_a_rule_lie_in_little_room_and_have_positions() -> None:
    budget = budget_of(LLAMA_8B, spec_of("sliding", context=100, window=32))
    assert budget.stored_bytes_per_sequence == 32 * 131_072
    assert budget.reserved_bytes_per_sequence == 64 * 131_072 + 32 * 8 * 32 * 8


@pytest.mark.parametrize(
    ("name", "fields", "held", "reserved"),
    [
        ("dynamic", {}, 31, 32),
        ("dynamic", {"context": 31}, 31, 31),
        ("dynamic", {"context": 32}, 31, 32),
        ("growing", {}, 100, 128),
        ("static", {"max_length": 200}, 32, 32),
        ("static", {"max_length": 20, "context": 20}, 20, 20),
        ("paged", {"page_size": 8}, 36, 40),
        ("paged", {"page_size": 8, "context": 9}, 9, 16),
        ("fp8", {}, 100, 128),
    ],
)
def test_tokens_of_a_layer_with_a_window(name: str, fields: dict[str, Any], held: int, reserved: int) -> None:
    config = {"model_type": "mistral", "num_hidden_layers": 1, "sliding_window": 32}
    geometry, spec = CacheGeometry.from_config(config), spec_of(name, **{"context": 100, **fields})
    need = CacheFormula(spec.cache, geometry, "bfloat16").layer(geometry.layers[0], spec.fill)
    assert need.rows == held
    per_row = budget_of(geometry, spec).bytes_per_token
    scales = 8 if name == "fp8" else 0
    assert need.reserved == reserved * per_row + scales


def test_nothing_is_kept_without_a_cache() -> None:
    budget = budget_of(CacheGeometry.from_config({"model_type": "jamba"}), spec_of("none", context=100))
    assert (budget.bytes_per_token, budget.bytes_per_sequence, budget.total_bytes) == (0, 0, 0)


def test_batches_multiply_and_kinds_add_up() -> None:
    geometry = CacheGeometry.from_config(GEMMA)
    one, five = budget_of(geometry, BudgetSpec(context=5000)), budget_of(geometry, BudgetSpec(context=5000, batch=5))
    assert five.total_bytes == 5 * one.total_bytes == 5 * one.bytes_per_sequence
    assert sum(kind.reserved_bytes for kind in one.kinds) == one.reserved_bytes_per_sequence
    assert [(kind.kind, kind.num_layers) for kind in one.kinds] == [("sliding", 52), ("full", 10)]


def test_states_are_constant_and_shared_layers_are_free() -> None:
    mamba = CacheGeometry.from_config({"model_type": "mamba"})
    short, long = budget_of(mamba, BudgetSpec(context=1)), budget_of(mamba, BudgetSpec(context=10**6))
    assert short.total_bytes == long.total_bytes == 32 * 1536 * (4 * 2 + 16 * 4)
    assert long.bytes_per_token == 0
    unknown = {"num_hidden_layers": 1, "layer_types": ["linear_attention"]}
    assert budget_of(CacheGeometry.from_config(unknown), BudgetSpec()).state_bytes_per_sequence is None
    gemma3n = budget_of(CacheGeometry.from_config({"model_type": "gemma3n_text"}), BudgetSpec(context=100))
    shared = next(kind for kind in gemma3n.kinds if kind.kind == "shared")
    assert (shared.num_layers, shared.reserved_bytes) == (15, 0)
    assert gemma3n.bytes_per_token == 20 * 2 * 2 * 256 * 2


def test_full_pages_are_written_through_to_the_host() -> None:
    budget = budget_of(LLAMA_8B, spec_of("offloaded", context=100, batch=3))
    assert budget.host_bytes == 3 * 96 * 131_072
    assert budget_of(LLAMA_8B, spec_of("paged", context=100, batch=3)).host_bytes == 0


# --- codecs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dim", "bits"),
    [
        ("fp8", 128, 8),
        ("fp8-token-head", 128, 8.25),
        ("fp8-token-head", 64, 8.5),
        ("fp8-max", 128, 9),
        ("fp8-max-e8m0", 128, 8.25),
        ("int8", 128, 8.125),
        ("kivi-2", 128, 3),
        ("kivi-4", 128, 5),
        ("kivi-8", 128, 9),
    ],
)
def test_effective_bits(name: str, dim: int, bits: float) -> None:
    assert Coding(name).row_bytes(dim) * 8 / dim == bits


@pytest.mark.parametrize(("bits", "group", "expected"), [(2, 32, 3.0), (2, 128, 2.25), (4, 32, 5.0), (4, 64, 4.5)])
def test_effective_bits_by_group(bits: int, group: int, expected: float) -> None:
    coding = Coding(f"kivi-{bits}", group, 128)  # type: ignore[arg-type]
    assert coding.row_bytes(128) * 8 / 128 == expected


def test_kivi_leaves_the_latest_tokens_exact() -> None:
    geometry = CacheGeometry.uniform(1, 1, 128)
    found = budget_of(geometry, spec_of("kivi-2", context=300, group=64))
    expected = (256 + 172) * 128 * 2.5 / 8 + (44 + 128) * 128 * 2
    assert found.stored_bytes_per_sequence == expected


def test_codes_save_what_their_bits_say() -> None:
    exact = total(LLAMA_8B, "growing", context=4096)
    assert (total(LLAMA_8B, "fp8", context=4096) - 32 * 8) * 2 == exact
    assert total(LLAMA_8B, "int8", context=4096) == exact * 8.125 / 16
    assert budget_of(LLAMA_8B, spec_of("kivi-4")).bytes_per_token == 131_072 * 5 / 16
    assert budget_of(LLAMA_8B, spec_of("paged-int8", context=17)).pool_bytes == 513 * 16 * 131_072 * 8.125 / 16


# --- what fits --------------------------------------------------------------------------------------------------------
