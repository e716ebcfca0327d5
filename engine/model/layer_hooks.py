"""Hooks at the layers of a model during a forward, without changing the model's code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from engine.model.batch import LayerCallback
from engine.model.encoder import has_encoder


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
