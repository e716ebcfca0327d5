"""Reads the rows of caches that other programs made: every cache class of transformers, and lists of (keys, values)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from transformers import EncoderDecoderCache
from transformers.cache_utils import Cache

from engine.cache.contract import HeldRows
from engine.cache.layers.handles import handle_of
from engine.errors import InputError


@torch.inference_mode()
def foreign_rows(cache: Any) -> dict[int, tuple[HeldRows, bool]]:
    """For each layer that has rows, by index: its rows `[B, H_kv, S, D]`, and whether it keeps a sliding window. Of an
    encoder-decoder only the decoder's own layers. Raises `InputError` for an object that is not a cache."""
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    if isinstance(cache, Cache):
        pairs = ((handle_of(layer).rows(), bool(getattr(layer, "is_sliding", False))) for layer in cache.layers)
        found = dict(enumerate(pairs))
    elif isinstance(cache, Iterable) and not isinstance(cache, str | bytes | dict | torch.Tensor):
        found = {index: (_of_pair(pair, index), False) for index, pair in enumerate(cache)}
    else:
        raise InputError(f"A {type(cache).__name__} is no cache: give past_key_values, or a list of (keys, values).")
    return {index: (rows, slides) for index, (rows, slides) in found.items() if rows is not None and rows.keys.shape[2]}


def _of_pair(pair: Any, index: int) -> HeldRows | None:
    try:
        keys, values = (torch.as_tensor(part) for part in tuple(pair)[:2])
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"Layer {index} is no pair of keys and values: give (keys, values) for each layer.") from None
    keys, values = (part[None] if part.dim() == 3 else part for part in (keys, values))
    if keys.dim() != 4 or values.dim() != 4 or keys.shape[:3] != values.shape[:3]:
        raise InputError(
            f"Layer {index} has keys {list(keys.shape)} and values {list(values.shape)}: give [B, H, S, D] of one S."
        )
    return HeldRows(keys, values, 0)
