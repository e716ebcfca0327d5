"""A forward of transformers: hooks at the layers of a model, and the arguments of an encoder-decoder, which is one
sequence of tokens, the first of which an encoder reads once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutput

from engine.cache.layers.build import cache_argument
from engine.errors import Check, InputError
from engine.model.attention import NAME as ATTENTION
from engine.model.attention import NO_LAYER
from engine.model.batch import Batch, LayerCallback

# ---- encoder-decoders -----------------------------------------------------------------------------------------------


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


def run_encoder(model: Any, source: torch.Tensor, check: Check | None) -> torch.Tensor:
    """The encoder's output `[1, S, D]` for a source `[1, S]`."""
    run = model.get_encoder()
    reads = check is not None and model.config._attn_implementation == ATTENTION  # additional arguments reach ours only
    asked = {"batch": Batch(source, None, check=check)} if reads else {}
    return run(input_ids=source, **asked).last_hidden_state  # type: ignore[no-any-return]


def attentions_of(output: Any) -> Iterator[torch.Tensor]:
    """The attention weights that a model returns, in order of layers."""
    for name in ("attentions", "decoder_attentions", "cross_attentions"):
        yield from (row for row in getattr(output, name, None) or () if row is not None)


# ---- hooks at the layers during a forward, without changing the model's code ----------------------------------------


@contextmanager
def watched(
    model: Any,
    heartbeat: Callable[[], None] | None = None,
    on_layer: LayerCallback | None = None,
    reads_hidden: bool = False,
) -> Iterator[list[Any]]:
    """While this context is open, call `heartbeat` before every module with a `layer_idx`, and `on_layer` after every
    layer with the layer's index and output; if `reads_hidden`, collect what the model's body (all of it but the head)
    returns. Forwards that `on_layer` itself begins, for a picture of a suspended step, are not watched."""
    found: list[Any] = []
    is_called = False
    with ExitStack() as hooks:
        if heartbeat is not None:
            for layer in (module for module in model.modules() if hasattr(module, "layer_idx")):
                hooks.callback(layer.register_forward_pre_hook(lambda *_: None if is_called else heartbeat()).remove)
        if on_layer is not None:
            for index, layer in layers_by_index(model.get_decoder() if has_encoder(model) else model).items():

                def call_back(_module: Any, _inputs: Any, output: Any, index: int = index) -> None:
                    nonlocal is_called
                    if not is_called:
                        is_called = True
                        try:
                            on_layer(index, active_stream(output[0] if isinstance(output, tuple) else output))
                        finally:
                            is_called = False

                hooks.callback(layer.register_forward_hook(call_back).remove)
        if reads_hidden:
            hook = model.get_decoder().register_forward_hook(
                lambda _module, _inputs, output: None if is_called else found.append(output)
            )
            hooks.callback(hook.remove)
        yield found


def active_stream(output: torch.Tensor) -> torch.Tensor:
    """The output of a layer `[B, T, hidden]`. With alternating updates (Gemma 3n) it has several streams
    `[streams, B, T, hidden]`, of which the first is the one that the layer computed."""
    return output[0] if output.dim() == 4 else output


def layers_by_index(model: Any) -> dict[int, Any]:
    """The layer modules of a model by index. The index is known to a submodule (`layer_idx`); the layer is its ancestor
    that is an item of a `ModuleList`."""
    modules: dict[str, Any] = dict(model.named_modules())
    found: dict[int, Any] = {}
    for name, module in modules.items():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int):
            parts = name.split(".")
            above = (".".join(parts[:n]) for n in range(len(parts)))
            depth = next((n for n, path in enumerate(above) if isinstance(modules[path], torch.nn.ModuleList)), None)
            found.setdefault(index, module if depth is None else modules[".".join(parts[: depth + 1])])
    return found
