"""A cache mode with other parameters: the one place that says where each of them is kept."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from engine.errors import InputError
from engine.spec.cache import CacheSpec
from engine.spec.codec import recoded
from engine.spec.retention import LayerBudgets, RetentionSpec

RETENTION_PARAMETERS = ("budget", "ratio", "sinks", "window", "rerotate")
CODEC_PARAMETERS = ("bits", "group", "residual")


def tuned(spec: CacheSpec, **parameters: Any) -> CacheSpec:
    """The spec with those parameters set that are not None; what is nonsense or does not apply is refused."""
    given = {name: value for name, value in parameters.items() if value is not None}
    retention = {name: given.pop(name) for name in RETENTION_PARAMETERS if name in given}
    if retention:
        given["retention"] = _tuned_retention(spec.retention, retention)
    coded = {name: given.pop(name) for name in CODEC_PARAMETERS if name in given}
    backend = given.pop("backend", None)
    if spec.quantizer is not None:
        given["quantizer"] = replace(spec.quantizer, **coded, **({"backend": backend} if backend else {}))
    elif backend is not None:
        raise InputError("A backend belongs to transformers' quantised cache; this one has none.")
    elif coded:
        codec = given.get("codec", spec.codec)
        given["codec"] = recoded(codec, coded.get("bits"), coded.get("group"), coded.get("residual"))
    return replace(spec, **given)


def _tuned_retention(retention: RetentionSpec, given: dict[str, Any]) -> RetentionSpec:
    if retention.keeps_all:
        raise InputError(
            f"This cache keeps all rows, so a {next(iter(given))} means nothing to it: choose one that drops rows."
        )
    budget = given.get("budget")
    if isinstance(budget, LayerBudgets):
        given |= {"budget": budget.mean, "layer_budgets": budget.layers, "schedule": budget.schedule}
    if "ratio" in given and budget is None:  # one takes the other's place
        given |= {"budget": None, "layer_budgets": (), "schedule": "uniform"}
    elif budget is not None and "ratio" not in given:
        given = {"layer_budgets": (), **given, "ratio": None}
    return replace(retention, **given)
