"""Cache modes of every kind: presets, what no preset has, and other sizes."""

from __future__ import annotations

from engine.spec.cache import ALL_PRESETS, CacheSpec, cache_named, tuned
from engine.spec.codec import CodecSpec, Coding, LayerCoding
from engine.spec.retention import RetentionSpec

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
    "a long plan": cache_named("int8@0=exact@1-2=kivi-8:16:32@4=fp8@6=int8/fp8@8=exact"),
    "a rule by pages": tuned(cache_named("paged-fp8"), page_size=64, num_pages=9, replace_duplicates=True),
    "another quantiser": tuned(cache_named("transformers-quantized"), backend="hqq", bits=3, group=32, residual=16),
    "pages of a budget": CacheSpec("paged", page_size=4, retention=RetentionSpec("snapkv", budget=24, window=6)),
}  # fmt: skip
