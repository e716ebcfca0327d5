"""Encoder-decoders: one sequence of tokens, the first of which an encoder reads once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutput

from engine.cache.layers.build import cache_argument
from engine.errors import InputError
from engine.model.attention import NAME as ATTENTION
from engine.model.attention import NO_LAYER
from engine.model.batch import Batch

CROSS_NAMES = ("EncDecAttention", "encoder_attn", "cross_attn", "crossattention")  # module names, by model family


def has_encoder(model: Any) -> bool:
    """Whether the model is an encoder-decoder."""
    return bool(getattr(model.config, "is_encoder_decoder", False))


def number_attention(model: Any, num_blocks: int) -> None:
    """Set `cache_layer` on attention modules that do not read the layer of their `layer_idx`: cross attention reads a
    cross layer, and an encoder's attention no cache."""
    if not has_encoder(model):
        return
    for name, module in model.get_decoder().named_modules():
        if name.rpartition(".")[2] in CROSS_NAMES and hasattr(module, "layer_idx"):
            module.cache_layer = num_blocks + module.layer_idx
    for module in model.get_encoder().modules():
        module.cache_layer = NO_LAYER


def start_id(model: Any) -> int:
    """The token with which the decoder starts; raises `InputError` where the model names none."""
    generation, config = getattr(model, "generation_config", None), model.config
    names = ("decoder_start_token_id", "bos_token_id")
    found = [getattr(of, name, None) for name in names for of in (generation, config)]
    chosen = next((i for i in found if isinstance(i, int)), None)
    if chosen is None:
        raise InputError(
            "The model's config names no decoder_start_token_id, so its decoder has nothing to start from: add it."
        )
    return chosen


def arguments_of(model: Any, batch: Batch) -> dict[str, Any]:
    """The arguments for a forward of the ids `[1, T]` of a batch. If its cache has no rows of the source yet, the
    source's tokens go through the encoder first; the other ids are the decoder's."""
    ids, cache = batch.ids, batch.cache
    if not cache.has_source:
        source, ids = ids[:, : cache.num_source], ids[:, cache.num_source :]
        if cache.encoded is None:
            began = time.perf_counter()
            cache.encoded = run_encoder(model, source, batch.check)
            cache.encoder_s = time.perf_counter() - began
    hidden = cache.encoded
    if hidden is None:  # cross layers read their cached rows; of this only the shape is used
        hidden = torch.zeros(1, 1, 1, dtype=model.dtype, device=ids.device).expand(1, cache.num_source, 1)
    return {
        "encoder_outputs": BaseModelOutput(hidden),
        "decoder_input_ids": ids,
        cache_argument(model): cache,
        "use_cache": True,
    }


def run_encoder(model: Any, source: torch.Tensor, check: Callable[[], None] | None) -> torch.Tensor:
    """The encoder's output `[1, S, D]` for a source `[1, S]`."""
    run = model.get_encoder()
    reads = check is not None and model.config._attn_implementation == ATTENTION  # additional arguments reach ours only
    asked = {"batch": Batch(source, None, check=check)} if reads else {}
    return run(input_ids=source, **asked).last_hidden_state  # type: ignore[no-any-return]


def attentions_of(output: Any) -> Iterator[torch.Tensor]:
    """The attention weights that a model returns, in order of layers."""
    for name in ("attentions", "decoder_attentions", "cross_attentions"):
        yield from (row for row in getattr(output, name, None) or () if row is not None)
