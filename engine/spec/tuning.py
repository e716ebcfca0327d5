"""Changes the parameters of a cache mode, or fits it to a text. This is the only place that knows which part of a spec
holds which parameter."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from engine.errors import InputError
from engine.spec.cache import CacheSpec
from engine.spec.codec import Coding, recoded
from engine.spec.retention import LayerBudgets, RetentionSpec

_RETENTION = ("budget", "ratio", "sinks", "window", "rerotate")
_CODEC = ("bits", "group", "residual")


def tuned(spec: CacheSpec, **parameters: Any) -> CacheSpec:
    """The spec with these parameters; None leaves one to the cache. Raises `InputError` for a value that is impossible
    or does not apply."""
    given = dict(parameters)
    retention = {name: given.pop(name) for name in _RETENTION if name in given}
    if retention:
        given["retention"] = _tuned_retention(spec.retention, retention)
    coded = {name: given.pop(name) for name in _CODEC if name in given}
    backend = given.pop("backend", None)
    if spec.quantizer is not None:
        given["quantizer"] = replace(spec.quantizer, **coded, **({"backend": backend} if backend else {}))
    elif backend is not None:
        raise InputError("A backend belongs to transformers' quantised cache; this one has none.")
    if coded and spec.quantizer is None:
        codec = given.get("codec", spec.codec)
        given["codec"] = recoded(codec, coded.get("bits"), coded.get("group"), coded.get("residual"))
    return replace(spec, **given)


def value_of(spec: CacheSpec, name: str) -> Any:
    """The value of a parameter; None where it is left to the cache, or where the cache has no such parameter."""
    if name in _RETENTION:
        return getattr(spec.retention, name)
    if name == "backend" or (name in _CODEC and spec.quantizer is not None):
        return getattr(spec.quantizer, name, None)
    if name not in _CODEC:
        return getattr(spec, name)
    # of K, or of V if V alone has the parameter
    both = (spec.codec.keys, spec.codec.values)
    coding = next((each for each in both if name in [p.name for p in each.row.parameters]), spec.codec.keys)
    group = coding.group_size if coding.has_groups else None
    return {"bits": coding.bits, "group": group, "residual": coding.residual_size or None}[name]


def _tuned_retention(retention: RetentionSpec, given: dict[str, Any]) -> RetentionSpec:
    if retention.keeps_all:
        raise InputError(
            f"This cache keeps all rows, so a {next(iter(given))} means nothing to it: choose one that evicts rows."
        )
    budget = given.get("budget")
    if isinstance(budget, LayerBudgets):
        given |= {"budget": budget.mean, "layer_budgets": budget.layers, "schedule": budget.schedule}
    if "sinks" in given:
        given["sinks"] = given["sinks"] or 0
    if given.get("ratio") is not None and budget is None:  # ratio replaces budget
        given |= {"budget": None, "layer_budgets": (), "schedule": "uniform"}
    elif budget is not None and given.get("ratio") is None:
        given = {"layer_budgets": (), **given, "ratio": None}
    return replace(retention, **given)


def fitted(spec: CacheSpec, num_tokens: int, share: float | None = None) -> CacheSpec:
    """The spec for a text of `num_tokens` tokens: a static cache without a given length reserves exactly those.

    With a `share`, the rule keeps that share of the tokens, or the least it can, and an exact residual is made as short
    as possible, so that a short text is compressed as a long one would be.
    """
    if spec.form == "static" and spec.max_length is None:
        return replace(spec, max_length=num_tokens)
    if share is None:
        return spec
    retention, codec = spec.retention, spec.codec
    if not retention.keeps_all:
        least = spec.page_size if spec.is_paged else 1
        return replace(spec, retention=_retention_keeping(retention, round(num_tokens * share), least))
    if any(coding.is_kivi for coding in (codec.keys, codec.values)):
        return replace(spec, codec=replace(codec, keys=_shortest(codec.keys), values=_shortest(codec.values)))
    return spec


def with_budget(spec: CacheSpec, num_kept: int) -> CacheSpec:
    """The spec with a rule that keeps `num_kept` rows, sinks and window included. Raises `InputError` if it cannot."""
    retention = spec.retention
    if retention.is_by_position:
        return replace(spec, retention=replace(retention, window=num_kept - retention.sinks))
    if retention.window is not None and retention.sinks + retention.window > num_kept:
        retention = replace(retention, window=None)
    return replace(spec, retention=replace(retention, budget=num_kept, ratio=None, layer_budgets=()))


def _retention_keeping(retention: RetentionSpec, num_kept: int, least: int) -> RetentionSpec:
    """The same rule, keeping `num_kept` rows."""
    sinks = retention.sinks
    if retention.is_by_position:
        return replace(retention, window=max(1, num_kept - sinks))
    budget = max(num_kept, sinks + 1, least)
    window = retention.window if retention.window is not None and sinks + retention.window <= budget else None
    return replace(retention, budget=budget, ratio=None, layer_budgets=(), window=window)


def _shortest(coding: Coding) -> Coding:
    return replace(coding, residual=coding.group_size) if coding.is_kivi else coding
