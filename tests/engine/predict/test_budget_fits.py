"""What fits a memory, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.predict.bytes import BudgetSpec, budget_of, tokens_that_fit
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.codec import CodecSpec, Coding, LayerCoding
from engine.spec.retention import RetentionSpec
from tests.engine.predict.shapes import LLAMA_8B, spec_of, total

GIB = 1024**3


def test_published_capacity_of_qwen3_4b() -> None:
    geometry = CacheGeometry.uniform(36, 8, 128)
    available = int(11.47 * GIB)
    assert tokens_that_fit(geometry, BudgetSpec(), available) == 83_521  # 11.47 is itself rounded: 83,521.99
    paged = tokens_that_fit(geometry, spec_of("paged"), available)
    assert paged == 83_520
    assert paged == pytest.approx(83_488, rel=1e-3)  # what a serving engine reported on that memory
    assert tokens_that_fit(geometry, BudgetSpec(dtype="float8_e4m3fn"), available) == pytest.approx(166_992, rel=1e-3)


@given(
    st.sampled_from(["dynamic", "growing", "static", "paged", "offloaded", "int8"]), st.integers(0, 10**9),
    st.integers(1, 5), st.sampled_from([1, 16, 128]),
)  # fmt: skip
def test_what_fits_fits_and_one_more_does_not(name: str, available: int, batch: int, page_size: int) -> None:
    sized = {"page_size": page_size} if PRESETS[name].spec.is_paged else {}

    def at(context: int) -> int:
        more = {"max_length": context} if name == "static" else sized
        return total(LLAMA_8B, name, context=context, batch=batch, **more)

    fitting = tokens_that_fit(LLAMA_8B, spec_of(name, batch=batch, **sized), available)
    assert fitting is not None
    assert fitting == 0 or at(fitting) <= available
    assert at(fitting + 1) > available


def test_layers_that_differ_are_each_counted_for_what_fits() -> None:
    coded = CodecSpec(layers=(LayerCoding(31, Coding("int8"), Coding("int8")),))
    for cache in (
        CacheSpec(codec=coded),
        CacheSpec(retention=RetentionSpec("snapkv", budget=256, schedule="pyramid")),
        CacheSpec(retention=RetentionSpec("knorm", layer_budgets=tuple(range(8, 40)))),
    ):
        spec = BudgetSpec(cache)
        available = budget_of(LLAMA_8B, BudgetSpec(cache, 1000)).total_bytes
        fitting = tokens_that_fit(LLAMA_8B, spec, available)
        assert fitting is None or fitting >= 1000
        less = tokens_that_fit(LLAMA_8B, spec, available // 3)
        assert less is not None
        assert less == 0 or budget_of(LLAMA_8B, BudgetSpec(cache, less)).total_bytes <= available // 3
        assert budget_of(LLAMA_8B, BudgetSpec(cache, less + 1)).total_bytes > available // 3


def test_some_caches_hold_any_context() -> None:
    assert tokens_that_fit(LLAMA_8B, spec_of("none"), 0) is None
    room = 64 * 131_072 + 10 * 8 * 32 * 8  # rows of the smallest buffer, and ten positions of each layer and head
    assert tokens_that_fit(LLAMA_8B, spec_of("sliding", window=10), room) is None
    assert tokens_that_fit(LLAMA_8B, spec_of("sliding", window=10), room - 1) == 10
    assert tokens_that_fit(CacheGeometry.from_config({"model_type": "mamba"}), BudgetSpec(), GIB) is None
    assert tokens_that_fit(CacheGeometry.from_config({"model_type": "mamba"}), BudgetSpec(), 10) == 0


@given(st.integers(1, 5000), st.sampled_from([1, 16, 128]))
def test_pages_waste_less_than_a_page(context: int, page_size: int) -> None:
    budget = budget_of(LLAMA_8B, spec_of("paged", context=context, page_size=page_size))
    waste = budget.reserved_bytes_per_sequence - budget.stored_bytes_per_sequence
    assert 0 <= waste < page_size * 131_072
    assert budget.reserved_bytes_per_sequence == math.ceil(context / page_size) * page_size * 131_072


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"context": 0}, "context"),
        ({"context": -1}, "-1"),
        ({"context": 10**13}, "10000000000000"),
        ({"batch": 0}, "batch"),
        ({"batch": True}, "batch"),
        ({"prompt": 0}, "prompt"),
        ({"prompt": 2}, "longer than the context"),
        ({"dtype": "int3"}, "int3"),
        ({"cache": CacheSpec("static", max_length=99), "context": 100}, "99"),
    ],
)
def test_impossible_questions_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        BudgetSpec(**fields)


@pytest.mark.parametrize(
    ("config", "name", "said"),
    [
        ({"model_type": "mamba"}, "paged", "nothing to page"),
        ({"model_type": "mamba"}, "int8", "nothing to quantise"),
        ({"model_type": "mistral", "sliding_window": 32}, "h2o", "only sliding layers"),
        ({"model_type": "mistral", "sliding_window": 32}, "transformers-quantized", "full attention in every layer"),
        ({"model_type": "gpt2", "n_embd": 480, "n_head": 6}, "kivi-4", "do not divide"),
    ],
)
def test_what_a_model_cannot_have_is_refused_as_the_engine_refuses_it(
    config: dict[str, Any], name: str, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        budget_of(CacheGeometry.from_config(config), spec_of(name, context=10))


def test_negative_memory_is_refused() -> None:
    with pytest.raises(InputError, match="-1"):
        tokens_that_fit(LLAMA_8B, BudgetSpec(), -1)
