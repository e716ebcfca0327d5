"""Builds the cache object of transformers that each contiguous layout starts with; among them a static cache for decode
steps compiled by torch.compile.
"""

from __future__ import annotations

import inspect
from importlib.metadata import distributions
from typing import Any

import torch
from transformers import DynamicCache, QuantizedCache, StaticCache
from transformers.cache_utils import Cache

from engine.cache.layers.cross import CrossLayer, DecoderRows, SourceCache
from engine.cache.layers.handles import CountedStaticLayer, as_counted, handle_of, is_pageable
from engine.cache.layers.layer import GrowingLayer, LayerBuffers, LayerHandle
from engine.errors import InputError, first_line, is_of_machine
from engine.geometry.dimensions import CacheGeometry
from engine.predict.capacity import DEFAULT_STATIC_TOKENS
from engine.spec.cache import CacheSpec, Quantizer
from engine.spec.codec import PARTS


def new_cache(spec: CacheSpec, config: Any, capacity: int | None) -> Cache:
    """An empty cache of a contiguous layout."""
    if spec.form == "static":
        kind = CompiledStaticCache if spec.row.is_compiled else StaticCache
        cache = kind(config=config, max_cache_len=capacity, offloading=spec.row.needs_cuda)
        if not spec.row.needs_cuda:  # offloaded rows move between devices, so a recorded step could not find them
            cache.layers = list(map(as_counted, cache.layers))
        return cache
    if spec.quantizer is not None:
        return quantized_cache(spec.quantizer, config)
    cache = DynamicCache(config=config, offloading=spec.row.needs_cuda)
    if spec.layout == "growing":
        buffers = LayerBuffers(len(cache.layers))
        for index, layer in enumerate(cache.layers):
            if is_pageable(layer):
                cache.layers[index] = GrowingLayer(buffers, index)
    return cache


def quantized_cache(quantizer: Quantizer, config: Any) -> Cache:
    """transformers' QuantizedCache; raises `InputError` where its package is missing or refuses the model or the
    settings."""
    names = {"nbits": quantizer.bits, "q_group_size": quantizer.group, "residual_length": quantizer.residual}
    try:
        return QuantizedCache(quantizer.backend, config, **{k: v for k, v in names.items() if v is not None})
    # what importing a package raises that does not fit the installed torch
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        package = {"quanto": "optimum-quanto", "hqq": "hqq"}.get(quantizer.backend)
        if package is None or is_of_machine(error):
            raise
        is_there = any(distributions(name=package))
        why = f"cannot be imported ({first_line(error)})" if is_there else "is not installed"
        raise InputError(f"The {quantizer.backend} quantiser {why}: install {package} or use fp8.") from None
    except ValueError as error:
        if "full attention" in str(error):
            raise InputError(
                "transformers' quantised cache takes models with full attention in every layer, which this one is not: "
                "use the fp8, int8 or KIVI codec."
            ) from None
        raise InputError(f"transformers' quantised cache refuses these settings ({error}): change them.") from None


@torch.inference_mode()
def idle_cache(config: Any, max_length: int) -> Cache:
    """A static cache for the whole context, zeroed before the first token and never read: what a serving engine
    reserves."""
    geometry = CacheGeometry.from_config(config)
    cache = StaticCache(config=config, max_cache_len=min(max_length, DEFAULT_STATIC_TOKENS))
    dtype = getattr(config, "dtype", None) or torch.float32
    for layer in geometry.attention_layers:
        shape = (1, layer.num_kv_heads, 0)
        cache.layers[layer.index].lazy_initialization(
            torch.empty(*shape, layer.key_dim, dtype=dtype), torch.empty(*shape, layer.value_dim, dtype=dtype)
        )
    return cache


def cache_argument(model: Any) -> str:
    """The name of the argument of a model's forward that takes its cache; releases of transformers differ in it."""
    names = inspect.signature(model.forward).parameters
    return next((name for name in ("cache", "past_key_values") if name in names), "cache_params")


def decoder_config(config: Any) -> Any:
    """The config from which a cache is made: that of the text decoder, with the number of the decoder's own layers."""
    found = config.get_text_config(decoder=True)
    if getattr(found, "is_encoder_decoder", False):
        found.num_hidden_layers = CacheGeometry.from_config(config).num_blocks
    return found


def handles_of(model_cache: Cache) -> list[LayerHandle]:
    """The handle of each layer of a cache; in an encoder-decoder first the decoder's own layers, then the cross
    layers."""
    if not isinstance(model_cache, SourceCache):
        return [handle_of(layer) for layer in model_cache.layers]
    own = [DecoderRows(handle_of(layer), model_cache.num_source) for layer in model_cache.self_attention_cache.layers]
    cross: list[CrossLayer] = model_cache.cross_attention_cache.layers
    return [*own, *cross]


# ---- a static cache whose compiled decode step reads and updates the row counts on the device -----------------------


class CompiledStaticCache(StaticCache):  # type: ignore[misc]
    """A static cache whose decode step runs through torch.compile."""

    def write_lengths(self) -> None:
        """Write the number of rows to the device in every layer: a compiled step reads it there."""
        for layer in self._counted:
            layer.write_length()

    def count_row(self) -> None:
        """Count the row that a compiled step has written in every layer."""
        for layer in self._counted:
            layer.num_rows += 1

    def copy_state(self) -> list[tuple[Any, dict[str, Any]]]:
        """Copies of what a step changes in each layer, for `restore_state`. K and V of static layers are not copied: a
        repeated step writes the same rows again."""
        return [(layer, _changed_by_a_step(layer)) for layer in self.layers]

    def restore_state(self, kept: list[tuple[Any, dict[str, Any]]]) -> None:
        """Restore what `copy_state` copied, in place: a step is compiled for tensors at fixed addresses."""
        for layer, values in kept:
            for name, value in values.items():
                held = getattr(layer, name)
                if isinstance(value, torch.Tensor):
                    held.copy_(value)
                elif isinstance(value, dict):
                    for key, each in value.items():
                        held[key].copy_(each)
                else:
                    setattr(layer, name, value)

    @property
    def _counted(self) -> list[CountedStaticLayer]:
        return [layer for layer in self.layers if type(layer) is CountedStaticLayer]


def compiled_static(cache: Any) -> CompiledStaticCache | None:
    """The decoder's cache if its decode steps are compiled; None for any other cache, and in an encoder-decoder before
    the encoder has run."""
    if isinstance(cache, SourceCache):
        cache = cache.self_attention_cache if cache.has_source else None
    return cache if isinstance(cache, CompiledStaticCache) else None


def _changed_by_a_step(layer: Any) -> dict[str, Any]:
    is_counted = type(layer) is CountedStaticLayer
    found: dict[str, Any] = {}
    for name, value in vars(layer).items():
        if isinstance(value, torch.Tensor) and not (is_counted and name in PARTS):
            found[name] = value.clone()
        elif isinstance(value, dict) and all(isinstance(each, torch.Tensor) for each in value.values()):
            found[name] = {key: each.clone() for key, each in value.items()}
        elif isinstance(value, int):
            found[name] = value
    return found
