"""transformers' static cache for a decode step that is compiled: all that it counts is in tensors meanwhile."""

from __future__ import annotations

from typing import Any

import torch
from transformers import StaticCache

from engine.cache.layers.cross import SourceCache
from engine.cache.layers.handles import CountedStaticLayer


class CompiledStaticCache(StaticCache):  # type: ignore[misc]
    """The decode step over it is to go through torch.compile."""

    def settle(self) -> None:
        """Before a compiled step, which knows the numbers on the device alone."""
        for layer in self._counted:
            layer.settle()

    def count(self) -> None:
        """Behind a compiled step, which has written a row of every layer."""
        for layer in self._counted:
            layer.num_rows += 1

    def kept(self) -> list[tuple[Any, dict[str, Any]]]:
        """What a step changes of each layer, to be given to `put_back`. Of rows that stay where they are nothing is
        kept: the same step writes them again."""
        return [(layer, _changed_by_a_step(layer)) for layer in self.layers]

    def put_back(self, kept: list[tuple[Any, dict[str, Any]]]) -> None:
        """In place: a step is compiled for tensors that stay where they are."""
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
    """The rows of a decoder that such a step writes; None of any other cache, and before an encoder has read."""
    if isinstance(cache, SourceCache):
        cache = cache.self_attention_cache if cache.has_source else None
    return cache if isinstance(cache, CompiledStaticCache) else None


def _changed_by_a_step(layer: Any) -> dict[str, Any]:
    is_counted = type(layer) is CountedStaticLayer
    found: dict[str, Any] = {}
    for name, value in vars(layer).items():
        if isinstance(value, torch.Tensor) and not (is_counted and name in ("keys", "values")):
            found[name] = value.clone()
        elif isinstance(value, dict) and all(isinstance(each, torch.Tensor) for each in value.values()):
            found[name] = {key: each.clone() for key, each in value.items()}
        elif isinstance(value, int):
            found[name] = value
    return found
