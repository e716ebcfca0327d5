"""transformers' static cache for a decode step compiled by torch.compile, which reads and updates the row counts on the
device."""

from __future__ import annotations

from typing import Any

import torch
from transformers import StaticCache

from engine.cache.layers.cross import SourceCache
from engine.cache.layers.handles import CountedStaticLayer


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
        if isinstance(value, torch.Tensor) and not (is_counted and name in ("keys", "values")):
            found[name] = value.clone()
        elif isinstance(value, dict) and all(isinstance(each, torch.Tensor) for each in value.values()):
            found[name] = {key: each.clone() for key, each in value.items()}
        elif isinstance(value, int):
            found[name] = value
    return found
