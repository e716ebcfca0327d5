"""The tutorial's memory table, by its formula and, where not too large, in real tensors; and an error in its text."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from msgspec.structs import replace
from transformers import LlamaConfig

from engine.cache.sequence_cache import SequenceCache
from engine.geometry.dimensions import CacheGeometry
from engine.predict.bytes import BudgetSpec, budget_of, tutorial_geometries
from engine.seeds import published
from engine.seeds.line import SeedLine, Sheet
from engine.seeds.models import SeedModels
from engine.spec.cache import CacheSpec

LENGTHS = (512, 2048, 8192)
LARGEST, QUICK_LARGEST = 400e6, 30e6  # limits of bytes that are allocated in tensors
SLIP = "a slip of the text: its table is of 16-bit numbers, where its own formula gives 537 MB"
BY_THE_CHAPTER = "by the chapter's formula"  # the chapter has the code of its table, and does not print what it gives
SLIP_MODEL, SLIP_TOKENS = "LLaMA-7B", 1024
BY_FORMULA, IN_TENSORS = (
    Sheet(published.TUTORIAL, "memory", on) for on in ("by formula", "tensors of a dynamic cache")
)


def kv_cache_memory_mb(layers: int, heads: int, head_dim: int, tokens: int, bytes_each: int) -> float:
    """The tutorial's formula for one sequence, in decimal megabytes."""
    return 2 * layers * heads * tokens * head_dim * bytes_each / 1e6


def memory_lines(models: SeedModels) -> Iterator[SeedLine]:
    """Nine sizes in float16, by the tutorial's formula and as a cache here holds them; then the sentence that
    contradicts the table."""
    largest = QUICK_LARGEST if models.setting.is_quick else LARGEST
    for name, geometry in tutorial_geometries().items():
        for tokens in LENGTHS:
            num_bytes = predicted(geometry, tokens, "float16")
            sheet, note = BY_FORMULA, "by this program's formula, not allocated in tensors"
            if num_bytes <= largest:
                num_bytes, sheet, note = held_bytes(geometry, tokens), IN_TENSORS, ""
            shown = round(kv_cache_memory_mb(*sizes(geometry), tokens, 2), 1)
            item = f"{name}, {tokens:,} tokens, float16"
            yield sheet.must(item, shown, round(num_bytes / 1e6, 1), "MB", note, heading=BY_THE_CHAPTER)
    geometry = tutorial_geometries()[SLIP_MODEL]
    for dtype, bytes_each in (("float16", 2), ("float32", 4)):
        megabytes = predicted(geometry, SLIP_TOKENS, dtype) / 1e6
        assert abs(megabytes - kv_cache_memory_mb(*sizes(geometry), SLIP_TOKENS, bytes_each)) < 1e-6
        item = f"the text: a 7B model at {SLIP_TOKENS:,} tokens, {dtype}"
        note = SLIP if dtype == "float16" else "the text's range holds for 32-bit numbers alone"
        line = BY_FORMULA.figure(item, published.SLIP_GB, round(megabytes, 1), "MB", note)
        yield replace(line, agrees=1000 <= megabytes <= 2000)


def predicted(geometry: CacheGeometry, tokens: int, dtype: str) -> int:
    return budget_of(geometry, BudgetSpec(context=tokens, dtype=dtype)).total_bytes


def sizes(geometry: CacheGeometry) -> tuple[int, int, int]:
    layer = geometry.layers[0]
    return len(geometry.layers), layer.num_kv_heads, layer.key_dim


def held_bytes(geometry: CacheGeometry, tokens: int) -> int:
    """Bytes of the tensors of a dynamic cache with that many rows of zeros."""
    layers, heads, head_dim = sizes(geometry)
    config = LlamaConfig(
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads, hidden_size=heads * head_dim
    )
    cache = SequenceCache(CacheSpec("dynamic"), config, tokens)
    rows = torch.zeros(1, heads, tokens, head_dim, dtype=torch.float16)
    for layer in range(layers):
        cache.live.update(rows, rows, layer)
    return cache.stored_bytes
