"""What every cache mode says of itself, and what it would take on models of every kind: compared with what was approved
(see `tests.engine.told`). Bytes are held to real caches in `test_bytes`; here every bound and every refusal is."""

from __future__ import annotations

from pathlib import Path

from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.predict.bytes import Fill, page_bytes, predict, why_no_sharing
from engine.predict.capacity import cache_capacity, most_tokens, pool_pages, tokens_at_once
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec, Coding, LayerCoding
from engine.spec.codec_names import codec_name
from engine.spec.presets import (
    ALL_PRESETS,
    cache_label,
    cache_name,
    cache_named,
    cache_summary,
    family_of,
    mode_detail,
    mode_words,
    parameters_of,
    preset_of,
    size_words,
)
from engine.spec.retention import RetentionSpec
from engine.spec.tuning import tuned
from tests.engine.geometry.tiny_configs import TINY
from tests.engine.tiny import config_dict
from tests.engine.told import approve

BY_LAYER = CodecSpec(Coding("int8"), Coding("exact"), (LayerCoding(1, Coding("kivi-4", 16, 32), Coding("fp8-head")),))
MODES: dict[str, CacheSpec] = {name: preset.spec for name, preset in ALL_PRESETS.items()} | {
    name: cache_named(name)
    for name in ("paged+h2o", "paged+sliding", "h2o+int8", "paged+tova+int8", "int8/kivi-4", "exact/fp8",
                 "fp8-max/fp8-max-e8m0")
} | {
    "by layer": CacheSpec(codec=BY_LAYER),
    "pyramid": CacheSpec(retention=RetentionSpec("h2o", budget=30, sinks=2, window=5, schedule="pyramid")),
    "two budgets": CacheSpec(retention=RetentionSpec("tova", layer_budgets=(40, 20))),
    "a ratio": CacheSpec(retention=RetentionSpec("knorm", ratio=0.4, sinks=3)),
    "rotated": CacheSpec(retention=RetentionSpec("sinks+window", sinks=3, window=20, rerotate=True)),
    "a short static": CacheSpec("static", max_length=90),
    "small pages": CacheSpec("paged", page_size=8, num_pages=21, replace_duplicates=True),
    "pages of one": CacheSpec("paged", page_size=1),
    "small groups": tuned(ALL_PRESETS["kivi-2"].spec, group=16, residual=32),
    "pages of a budget": CacheSpec("paged", page_size=4, retention=RetentionSpec("snapkv", budget=24, window=6)),
}  # fmt: skip
FILLS = (
    Fill(1, None),
    Fill(70, None),
    Fill(1, 1),
    Fill(17, 16),
    Fill(33, 30),
    Fill(64, 40),
    Fill(65, 40),
    Fill(130, 90),
)


def geometries() -> dict[str, CacheGeometry]:
    names = ("llama", "falcon", "mistral", "gemma3_text", "deepseek_v3", "lfm2", "t5", "bart")
    found = {name: CacheGeometry.from_config(config_dict(name)) for name in names}
    shared = {**TINY["gemma3n_text"][0], "model_type": "gemma3n_text"}
    indexed = {**TINY["deepseek_v32"][0], "model_type": "deepseek_v32"}
    wide = {"model_type": "llama", "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
            "head_dim": 64, "hidden_size": 48, "vocab_size": 128, "max_position_embeddings": 6000}  # fmt: skip
    others = {"shared": shared, "indexed": indexed, "wide": wide}
    return found | {name: CacheGeometry.from_config(config) for name, config in others.items()}


def said(name: str, spec: CacheSpec) -> list[str]:
    tuned_by = [f"{p.name}={getattr(spec, p.name, '')}" for p in parameters_of(spec)]
    return [
        f"== {name}: {cache_name(spec)} | {cache_label(spec)} | {preset_of(spec).name} | {family_of(spec)} | "
        f"{codec_name(spec.codec)}",
        f"   {mode_words(spec)} | {mode_detail(spec)} | {' · '.join(size_words(spec))} | {', '.join(tuned_by)}",
        f"   {cache_summary(spec)}",
    ]


def taken(spec: CacheSpec, geometry: CacheGeometry, dtype: str) -> str:
    """Rows, bytes stored by kind, and bytes reserved of every layer together, at every length; and the capacities."""
    try:
        found = [predict(spec, geometry, fill, dtype) for fill in FILLS]
        stored = [
            " ".join(
                str(sum(column))
                for column in zip(
                    *((n.rows, n.stored.codes, n.stored.scales, n.stored.exact, n.reserved) for n in needs), strict=True
                )
            )
            for needs in found
        ]
        limit = geometry.max_length or 2048
        more = sum(need.one_more for need in found[0])
        numbers = [more, most_tokens(spec, geometry), cache_capacity(spec, limit, geometry), *[
            pool_pages(spec, limit), page_bytes(spec, geometry, dtype), tokens_at_once(spec, limit, geometry),
        ] * spec.is_paged]  # fmt: skip
    except InputError as refusal:
        return f"refused: {refusal}"
    return f"{' '.join(map(str, numbers))} | {' | '.join(stored)}{'; ' * spec.is_paged}" + (
        why_no_sharing(spec, geometry) if spec.is_paged else ""
    )


def test_modes_and_their_bytes_are_as_approved() -> None:
    lines, models = [], geometries()
    for name, spec in MODES.items():
        lines += said(name, spec)
        lines += [f"   {model}: {taken(spec, geometry, 'bfloat16')}" for model, geometry in models.items()]
    lines += [f"   float32 {model}: {taken(CacheSpec(codec=BY_LAYER), g, 'float32')}" for model, g in models.items()]
    approve(Path(__file__).parent / "approved" / "modes.txt", lines)
