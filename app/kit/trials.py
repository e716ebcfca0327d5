"""What can be tried on the frozen cache: every rule that drops rows, every codec, and the numbers that each takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.geometry.dimensions import CacheGeometry
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec, CodingName, uniform
from engine.spec.presets import PRESETS
from engine.spec.retention import RetentionSpec
from engine.spec.tuning import tuned

ALL_ROWS, EXACT, KIVI = "all", "exact", "kivi"
KIVI_BITS = (8, 4, 2)


@dataclass(frozen=True)
class Trial:
    """A rule or a codec as people call it, with the parameters it takes and what it does, in one sentence."""

    name: str
    label: str
    parameters: tuple[str, ...] = ()
    summary: str = ""


RULES: dict[str, Trial] = {
    ALL_ROWS: Trial(ALL_ROWS, "keep all rows"),
    **{
        name: Trial(name, preset.label, tuple(p for p in preset.parameters if p != "rerotate"), preset.summary)
        for name, preset in PRESETS.items()
        if preset.spec.layout == "growing" and not preset.spec.retention.keeps_all
    },
}

CODECS: dict[str, Trial] = {
    trial.name: trial
    for trial in (
        Trial(EXACT, "exact numbers"),
        Trial("fp8", "FP8, tensor", (), "e4m3, one scale for the whole tensor, frozen when the prompt ends"),
        Trial("fp8-head", "FP8, head", (), "e4m3, one scale per head, frozen when the prompt ends"),
        Trial("fp8-token-head", "FP8, token and head", (), "e4m3, one scale per token and head"),
        Trial("fp8-max", "FP8 of MAX, f32", ("group",), "e4m3, one float32 scale per group of channels"),
        Trial("fp8-max-e8m0", "FP8 of MAX, e8m0", ("group",), "e4m3, one power of two per group of channels"),
        Trial("int8", "INT8", (), "int8, one scale per token and head"),
        Trial(
            KIVI,
            "KIVI",
            ("bits", "group", "residual"),
            "keys per channel over groups of tokens, values per token over groups of channels, the latest rows exact",
        ),
    )
}


def codec_of(name: str, bits: int = 4, group: int | None = None, residual: int | None = None) -> CodecSpec:
    """A codec by its name here; raises `InputError` for numbers that it cannot have."""
    if name == EXACT:
        return CodecSpec()
    full: CodingName = f"kivi-{bits}" if name == KIVI else name  # type: ignore[assignment]
    parameters = CODECS[name].parameters
    return uniform(full, group if "group" in parameters else None, residual if "residual" in parameters else None)


def retention_of(name: str) -> RetentionSpec:
    return RetentionSpec() if name == ALL_ROWS else PRESETS[name].spec.retention


def takes_ratio(name: str) -> bool:
    """Whether a rule may be given a ratio instead of a budget; a pyramid spreads a budget."""
    return "ratio" in RULES[name].parameters and retention_of(name).schedule == "uniform"


def spec_of(rule: str, codec: CodecSpec, **sizes: Any) -> CacheSpec:
    """The cache of a rule and a codec; raises `InputError` with the reason where they or the sizes do not fit."""
    spec = CacheSpec(retention=retention_of(rule), codec=codec)
    return tuned(spec, **sizes) if sizes else spec


def fitting_group(geometry: CacheGeometry | None, most: int = 32) -> int:
    """The widest usual group that divides the channels of every layer."""
    dims = (
        {dim for layer in geometry.attention_layers for dim in (layer.key_dim, layer.value_dim)} if geometry else set()
    )
    return next((g for g in (128, 64, 32, 16, 8) if g <= most and all(dim % g == 0 for dim in dims)), 8)


def trial_words(spec: CacheSpec) -> str:
    """What was tried, in a few words: `budget 120 · INT8`."""
    retention, coding = spec.retention, spec.codec.keys
    words: list[str] = []
    if retention.budget is not None:
        words.append(f"budget {retention.budget}")
    elif retention.ratio is not None:
        words.append(f"ratio {retention.ratio:g}")
    elif retention.window is not None:
        words.append(f"window {retention.window}")
    if not coding.is_exact:
        words.append(coding.name if not coding.has_groups else f"{coding.name} g{coding.group_size}")
    return " · ".join(words) or "as it is"
