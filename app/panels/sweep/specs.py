"""Which caches a sweep tries: every preset, as it is or cut to a share of the tokens: a short text must tell, too."""

from __future__ import annotations

from engine.errors import InputError
from engine.spec.cache import CacheSpec
from engine.spec.presets import PRESETS, Preset
from engine.spec.tuning import tuned

LEAST_BUDGET = 8


def sized(preset: Preset, num_tokens: int, share: float | None) -> CacheSpec:
    """The preset with a budget of that share of the tokens, and the shortest exact residual; None: as it is."""
    spec = preset.spec
    if share is None:
        return spec
    retention = spec.retention
    budget = max(LEAST_BUDGET, round(num_tokens * share))
    try:
        if retention.name == "window":
            return tuned(spec, window=budget)
        if retention.name == "sinks+window":
            return tuned(spec, window=max(1, budget - retention.sinks))
        if not retention.keeps_all:
            return tuned(spec, budget=budget)
        if spec.codec.keys.is_kivi:
            return tuned(spec, residual=spec.codec.keys.group_size)
    except InputError:  # a size that this rule cannot take: it is tried as it is
        return spec
    return spec


def every_cache(num_tokens: int, share: float | None) -> tuple[tuple[str, CacheSpec], ...]:
    return tuple((name, sized(preset, num_tokens, share)) for name, preset in PRESETS.items())


def size_words(spec: CacheSpec) -> str:
    """What sizes a spec, in the words of the command line's options; empty where nothing does."""
    retention, coding = spec.retention, spec.codec.keys
    parts = []
    if retention.budget is not None:
        parts.append(f"budget {retention.budget}")
    if retention.sinks:
        parts.append(f"sinks {retention.sinks}")
    if retention.window is not None:
        parts.append(f"window {retention.window}")
    if coding.is_kivi:
        parts += [f"group {coding.group_size}", f"residual {coding.residual_size}"]
    return ", ".join(parts)
