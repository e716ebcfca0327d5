"""Shapes and caches whose bytes are reckoned."""

from __future__ import annotations

from typing import Any

from engine.geometry.dimensions import CacheGeometry
from engine.predict.bytes import BudgetSpec, budget_of
from engine.spec.cache import PRESETS, tuned

LLAMA_8B = CacheGeometry.uniform(32, 8, 128)


def spec_of(
    name: str = "dynamic", *, context: int = 1, batch: int = 1, dtype: str = "bfloat16", **more: Any
) -> BudgetSpec:
    """A preset with parameters, and what is to be kept in it."""
    prompt = more.pop("prompt", None)
    return BudgetSpec(tuned(PRESETS[name].spec, **more), context, batch, dtype, prompt)


def total(geometry: CacheGeometry, name: str = "dynamic", **fields: Any) -> int:
    return budget_of(geometry, spec_of(name, **fields)).total_bytes
