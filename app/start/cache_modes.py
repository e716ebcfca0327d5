"""The cache modes that the window offers: every preset, grouped by what it does to the rows."""

from __future__ import annotations

from typing import Any, Literal, get_args

from msgspec.structs import replace

from engine.spec.cache import CacheSpec
from engine.spec.codec import recoded
from engine.spec.presets import PRESETS, Preset, cache_preset
from engine.spec.retention import BY_POSITION
from engine.spec.tuning import CODEC_PARAMETERS, RETENTION_PARAMETERS

Family = Literal["lossless", "quantised", "evicting"]


def family_of(spec: CacheSpec) -> Family:
    """What a mode does to rows: keeps them, writes them coarsely, or drops some."""
    if not spec.retention.keeps_all:
        return "evicting"
    return "lossless" if spec.codec.is_exact and spec.quantizer is None else "quantised"


def _by_family(preset: Preset) -> int:
    return get_args(Family).index(family_of(preset.spec))


MODES: dict[str, Preset] = {preset.name: preset for preset in sorted(PRESETS.values(), key=_by_family)}


def mode(name: str) -> Preset:
    """The mode of that name; raises `InputError` naming those that exist."""
    return cache_preset(name)


def with_parameters(spec: CacheSpec, values: dict[str, Any]) -> CacheSpec:
    """The spec with exactly these parameters, None where one is left to the cache; the engine refuses nonsense."""
    left = {name: value for name, value in values.items() if value != getattr(spec, name)}
    rule = {name: left.pop(name) for name in RETENTION_PARAMETERS if name in left}
    coded = {name: left.pop(name) for name in CODEC_PARAMETERS if name in left}
    if "sinks" in rule:
        rule["sinks"] = rule["sinks"] or 0
    if spec.quantizer is not None:
        left["quantizer"] = replace(spec.quantizer, backend=left.pop("backend", spec.quantizer.backend), **coded)
    elif coded:
        left["codec"] = recoded(spec.codec, coded.get("bits"), coded.get("group"), coded.get("residual"))
    if rule:
        left["retention"] = replace(spec.retention, **rule)
    return replace(spec, **left)


def shrunk(spec: CacheSpec, num_tokens: int) -> CacheSpec | None:
    """The same mode so small that a sequence of that length feels it; None where there is nothing to make smaller."""
    rule, kept = spec.retention, max(num_tokens // 3, spec.retention.sinks + 1)
    if rule.name in BY_POSITION:
        return with_parameters(spec, {"window": max(1, kept - rule.sinks)})
    if not rule.keeps_all:
        least = spec.page_size if spec.is_paged else 1
        return with_parameters(spec, {"budget": max(kept, least), "ratio": None, "window": None})
    if spec.codec.keys.is_kivi:
        return with_parameters(spec, {"residual": spec.codec.keys.group_size})
    return None
