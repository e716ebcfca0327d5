"""What the cache layers of our own have in common."""

from __future__ import annotations

import torch
from transformers.cache_utils import CacheLayerMixin

from engine.cache.contract import Pair
from engine.cache.layers.layer_handle import LayerHandle
from engine.cache.stored import StoredLayer
from engine.spec.codec import Part


class OwnLayer(LayerHandle, CacheLayerMixin):  # type: ignore[misc]
    """A layer of ours: it honours transformers' contract and is its own handle."""

    takes_rows = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object) -> Pair:
        """What a forward calls: `append`, and before the first rows `lazy_initialization`."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self.append(key_states, value_states)

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> Pair:
        """Add rows `[B, H_kv, T, D]`; returns what attention reads, `[B, H_kv, S + T, D]`."""
        raise NotImplementedError

    def get_max_length(self) -> int:
        return -1  # transformers' word for "no maximum"

    def num_final(self, part: Part) -> int:
        return int(self.get_seq_length())

    def restore(self, stored: StoredLayer) -> None:
        self.update(stored.keys.tensors["rows"], stored.values.tensors["rows"])
