"""A mode with other parameters, and fitted to a text."""

from __future__ import annotations

import pytest

from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.spec.cache import PRESETS, CacheSpec, cache_named, fitted, tuned, value_of
from engine.spec.codec import coding_of, fitting_group
from engine.spec.retention import LayerBudgets

H2O = PRESETS["h2o"].spec


def test_a_budget_and_a_ratio_take_each_others_place() -> None:
    by_ratio = tuned(H2O, ratio=0.25)
    assert (by_ratio.retention.budget, by_ratio.retention.ratio) == (None, 0.25)
    again = tuned(by_ratio, budget=12)
    assert (again.retention.budget, again.retention.ratio) == (12, None)
    with pytest.raises(InputError, match="give exactly one"):
        tuned(H2O, budget=None)
    with pytest.raises(InputError, match="give exactly one"):
        tuned(H2O, budget=None, ratio=None)


def test_none_leaves_a_parameter_to_the_cache() -> None:
    windowed = tuned(H2O, window=8, sinks=2)
    assert (windowed.retention.window, windowed.retention.sinks) == (8, 2)
    left = tuned(windowed, window=None, sinks=None)
    assert (left.retention.window, left.retention.sinks) == (None, 0)


def test_a_budget_by_layer_is_uniform_again_with_one_number() -> None:
    spread = tuned(H2O, budget=LayerBudgets((30, 10)))
    assert spread.retention.layer_budgets == (30, 10)
    assert tuned(spread, budget=20).retention.layer_budgets == ()


@pytest.mark.parametrize("parameter", ["budget", "ratio", "sinks", "window"])
def test_what_does_not_apply_is_refused(parameter: str) -> None:
    with pytest.raises(InputError, match="keeps all rows"):
        tuned(CacheSpec(), **{parameter: 1})


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("sliding", {"window": 25}),
        ("streamingllm", {"sinks": 4, "window": 21}),
        ("h2o", {"budget": 25, "window": None}),
        ("paged+tova", {"budget": 25}),
        ("kivi-2", {"residual": 32}),
        ("int8/kivi-2", {"residual": 32}),
        ("growing", {}),
        ("int8", {}),
    ],
)
def test_a_mode_is_fitted_to_a_share_of_a_text(name: str, kept: dict[str, int | None]) -> None:
    spec = cache_named(name)
    smaller = fitted(spec, 100, 0.25)
    assert {parameter: value_of(smaller, parameter) for parameter in kept} == kept
    assert (smaller == spec) == (not kept)
    assert fitted(spec, 100) == spec, "without a share only a static cache is fitted"


def test_what_no_share_can_be_is_as_small_as_can_be() -> None:
    assert fitted(tuned(H2O, sinks=3), 4, 0.25).retention.budget == 4, "the sinks and one more"
    assert fitted(cache_named("paged+h2o"), 8, 0.25).retention.budget == 16, "a page"
    assert fitted(PRESETS["streamingllm"].spec, 4, 0.25).retention.window == 1
    # a window that no longer fits is the rule's own
    assert fitted(tuned(H2O, window=80), 100, 0.25).retention.window is None
    assert fitted(tuned(H2O, window=8), 100, 0.25).retention.window == 8


def test_a_static_cache_reserves_the_text() -> None:
    assert fitted(CacheSpec("static"), 70).max_length == 70
    assert fitted(CacheSpec("static", max_length=9), 70).max_length == 9


def test_a_codec_takes_the_numbers_that_it_has() -> None:
    assert coding_of("kivi", 2, 16, 64).name == "kivi-2"
    assert coding_of("kivi", 2, 16, 64).residual == 64
    assert (coding_of("fp8-max", 2, 16, 64).group, coding_of("fp8-max", 2, 16, 64).residual) == (16, None)
    assert coding_of("int8", 2, 16, 64).group is None
    with pytest.raises(InputError, match="multiple of the group"):
        coding_of("kivi", 4, 32, 40)
    assert fitting_group(CacheGeometry.uniform(2, 2, 32)) == 32
    assert fitting_group(CacheGeometry.uniform(2, 2, 24)) == 8
