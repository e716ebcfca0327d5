"""Tries a loaded model on a few tokens: whether its attention runs through ours, and whether the fused decoder agrees
with it."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from engine.cache.attention_probe import Probe
from engine.cache.contract import Pair
from engine.cache.layers.build import cache_argument, decoder_config
from engine.cache.layers.cross import SourceCache
from engine.errors import is_of_machine
from engine.geometry.dimensions import CacheGeometry
from engine.model.attention import NAME as ATTENTION
from engine.model.batch import Batch, head_of
from engine.model.forward import arguments_of, has_encoder, watched
from engine.model.runners.decoder import FusedDecoder, has_llama_structure
from engine.predict.capacity import context_length

NOISE_SEED = 0
PROBE_ROWS = 5
BATCH = 4  # sequences: on a CPU products for so many are computed in parts
ROUNDING = 64  # tolerance, in units of the dtype's epsilon, for the relative norm of a difference


def runs_through_registry(model: Any) -> bool:
    """Whether the model's attention goes through our function, found out with two tokens. If not, the model is left
    unchanged."""
    native = model.config._attn_implementation
    probe = Probe()
    try:
        model.set_attn_implementation(ATTENTION)
        with torch.inference_mode():
            ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
            if has_encoder(model):
                cache = SourceCache(DynamicCache(config=decoder_config(model.config)), 1)
                model(**arguments_of(model, batch := Batch(ids, cache, probe)), batch=batch)
                return len(probe.rows()) == len(cache.layers) or restore_attention(model, native)
            cache = DynamicCache(config=model.config)
            model(ids, **{cache_argument(model): cache}, use_cache=True, batch=Batch(ids, cache, probe))
    except (TypeError, ValueError, AttributeError):
        return restore_attention(model, native)
    return bool(probe.rows()) or restore_attention(model, native)


def restore_attention(model: Any, native: str) -> bool:
    """Restore the model's own attention, and return False."""
    model.set_attn_implementation(native)
    return False


@torch.inference_mode()
def is_head_apart(model: Any) -> bool:
    """Whether the head can be applied to the last layer's output alone: for two tokens its logits equal the model's."""
    try:
        ids = torch.arange(1, 3, device=model.device)[None] % model.get_input_embeddings().num_embeddings
        with watched(model, reads_hidden=True) as seen:
            logits = model(ids, use_cache=False).logits
        return torch.equal(head_of(model, seen[0])(seen[0].last_hidden_state), logits)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        if is_of_machine(error):
            raise
        return False


def decoder_of(model: Any, geometry: CacheGeometry) -> FusedDecoder | None:
    """The fused decoder of a model; None unless the model has its structure and both agree to the last bit, on one
    token. Which other forwards it takes over (chunks, batches) is decided by trying these as well."""
    if not has_llama_structure(model) or any(layer.kind != "full" or layer.window for layer in geometry.layers):
        return None
    if model.get_input_embeddings().num_embeddings < 2:
        return None  # its only token may be padding, whose embedding is zero and tells nothing
    try:
        for is_joined in (True, False):
            decoder = FusedDecoder(model, is_joined)
            if agrees(decoder, model, geometry, 1):
                decoder.takes_chunks = agrees(decoder, model, geometry, PROBE_ROWS)
                decoder.defers_last_layer = decoder.takes_chunks and agrees_when_deferred(decoder, model, geometry)
                decoder.takes_batches = agrees_by_sequence(decoder, model, geometry)
                return decoder
    except (AttributeError, RuntimeError) as error:  # a model with the same modules, connected differently
        if is_of_machine(error):
            raise
        return None
    return None


@torch.inference_mode()
def agrees(decoder: FusedDecoder, model: Any, geometry: CacheGeometry, count: int) -> bool:
    """Whether both give the same result for `count` tokens over a cache of noise, at the last positions of the context,
    where errors in positions show most."""
    token_id = 0 if getattr(model.config, "pad_token_id", None) == 1 else 1  # the embedding of padding may be zero
    ids = torch.full((1, count), token_id, device=model.device)
    start = context_length(geometry) - count
    places = torch.arange(start, start + count, device=model.device)[None]
    mine, cache = noise(model, geometry), noise(model, geometry)
    logits = model(ids, **{cache_argument(model): cache}, use_cache=True, position_ids=places).logits
    return torch.equal(decoder.head(decoder.outputs(Batch(ids, mine), None, start)[0]), logits) and same_rows(
        mine, cache
    )


@torch.inference_mode()
def agrees_when_deferred(decoder: FusedDecoder, model: Any, geometry: CacheGeometry) -> bool:
    """Whether a last layer computed later gives the same output for a few tokens, within rounding, and the same rows in
    the cache, to the last bit."""
    ids = torch.arange(1, PROBE_ROWS + 1, device=model.device)[None] % model.get_input_embeddings().num_embeddings
    start = context_length(geometry) - PROBE_ROWS
    mine, cache = noise(model, geometry), noise(model, geometry)
    whole, _ = decoder.outputs(Batch(ids, cache), None, start)
    newest, later = decoder.outputs(Batch(ids, mine), 0, start)
    if later is None or not same_rows(mine, cache):
        return False
    parts = [later.narrow(1, 0, 2), later.narrow(1, 2, PROBE_ROWS - 3), newest]
    error = (torch.cat(parts, 1).float() - whole.float()).norm() / whole.float().norm()
    return bool(error < ROUNDING * torch.finfo(whole.dtype).eps)


@torch.inference_mode()
def agrees_by_sequence(decoder: FusedDecoder, model: Any, geometry: CacheGeometry) -> bool:
    """Whether both give the same result for the next tokens of several sequences, each over rows of noise."""
    ids = torch.arange(1, BATCH + 1, device=model.device)[:, None] % model.get_input_embeddings().num_embeddings
    start = context_length(geometry) - 1
    mine, cache = noise(model, geometry, BATCH), noise(model, geometry, BATCH)

    def append(layer: int, keys: torch.Tensor, values: torch.Tensor) -> list[Pair]:
        rows = mine.update(keys, values, layer)
        return list(zip(*(part.split(1) for part in rows), strict=True))

    logits = model(
        ids, **{cache_argument(model): cache}, use_cache=True, position_ids=torch.full_like(ids, start)
    ).logits
    hidden = decoder.hidden_by_sequence(Batch(ids, mine, lengths=(start,) * BATCH), append)
    return torch.equal(decoder.head(hidden), logits) and same_rows(mine, cache)


def noise(model: Any, geometry: CacheGeometry, batch: int = 1) -> DynamicCache:
    """A cache of a few random rows, the same every time."""
    cache, generator = DynamicCache(config=model.config), torch.Generator().manual_seed(NOISE_SEED)
    for layer in geometry.layers:
        sizes = [(batch, layer.num_kv_heads, PROBE_ROWS, dim) for dim in (layer.key_dim, layer.value_dim)]
        keys, values = (torch.randn(size, generator=generator).to(model.device, model.dtype) for size in sizes)
        cache.update(keys, values, layer.index)
    return cache


def same_rows(one: DynamicCache, other: DynamicCache) -> bool:
    """Whether two caches hold the same K and V, bit for bit."""
    pairs = zip(one.layers, other.layers, strict=True)
    return all(torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values) for a, b in pairs)
