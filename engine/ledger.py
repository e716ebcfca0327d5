"""The byte ledger of a session: predicted by formula, stored in rows, reserved in storage, held for looking."""

from __future__ import annotations

import torch

from engine.cache.adapter import SequenceCache
from engine.config import CacheSpec
from engine.geometry import LayerGeometry
from engine.records import CacheBytes, LayerBytes, ModelInfo

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def cache_bytes(
    info: ModelInfo, spec: CacheSpec, caches: list[SequenceCache], looking: int, process: int
) -> CacheBytes:
    """Sum over sequences, layer by layer. What layout `none` computes is held for looking, and by nobody else."""
    width = ITEM_BYTES[info.dtype]
    layers = []
    for layer in info.geometry.layers:
        measured = [cache.layer_bytes(layer.index) for cache in caches]
        stored, reserved = sum(s for s, _ in measured), sum(r for _, r in measured)
        if spec.layout == "none":
            looking += reserved
            stored = reserved = 0
        predicted = sum(predicted_bytes(layer, spec, cache, width) for cache in caches)
        layers.append(LayerBytes(layer.index, layer.kind, predicted, stored, reserved))
    allocator = torch.cuda.memory_allocated() if info.device.startswith("cuda") else None
    return CacheBytes(tuple(layers), looking, process, allocator)


def predicted_bytes(layer: LayerGeometry, spec: CacheSpec, cache: SequenceCache, width: int) -> int:
    """(D_k + D_v) x H_kv x tokens x bytes of a number; a sliding layer of transformers keeps W - 1 tokens once full."""
    if spec.layout == "none" or layer.kind in ("shared", "none") or cache.num_tokens == 0:
        return 0
    if layer.kind == "linear":
        return (layer.state_elements or 0) * width
    tokens = cache.num_tokens
    if layer.window is not None and spec.layout == "dynamic" and tokens >= layer.window:
        tokens = layer.window - 1
    if layer.window is not None and spec.layout == "static" and cache.capacity is not None:
        tokens = min(tokens, layer.window, cache.capacity)
    return (layer.key_dim + layer.value_dim) * layer.num_kv_heads * tokens * width
