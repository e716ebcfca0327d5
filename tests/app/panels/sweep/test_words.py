"""The words of a sweep: what a mode of a grid is called."""

from __future__ import annotations

import pytest

from engine.spec.cache import cache_named
from engine.spec.grid import SweepMode


@pytest.mark.parametrize(
    ("name", "cache", "label"),
    [
        ("h2o@25%", "h2o", "H2O @25%"),
        ("int8", "int8", "INT8"),
        ("exact@0-2=int8", "exact@0-2=int8", "codec by layer"),
    ],
)
def test_a_size_of_the_grid_is_told_and_a_plan_by_layer_is_none(name: str, cache: str, label: str) -> None:
    assert SweepMode(name, cache_named(cache)).label == label
