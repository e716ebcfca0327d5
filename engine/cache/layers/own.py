"""The base of this program's own cache layers, and a layer that a forward reads without changing it."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin

from engine.cache.contract import HeldRows, Pair
from engine.cache.layers.layer_handle import LayerHandle
from engine.cache.stored import StoredLayer
from engine.spec.codec import Part


class OwnLayer(LayerHandle, CacheLayerMixin):  # type: ignore[misc]
    """A cache layer of this program: it implements transformers' layer interface and is its own handle."""

    takes_rows = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Called before the first rows are appended."""
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object) -> Pair:
        """Called by the forward: append rows, after `lazy_initialization` if these are the first."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self.append(key_states, value_states)

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> Pair:
        """Append rows `[B, H_kv, T, D]`; returns what attention reads, `[B, H_kv, S + T, D]`."""
        raise NotImplementedError

    def get_max_length(self) -> int:
        return -1  # transformers' word for "no maximum"

    def num_final(self, part: Part, num_tokens: int) -> int:
        return min(int(self.get_seq_length()), num_tokens)

    def restore(self, stored: StoredLayer) -> None:
        self.update(stored.keys.tensors["rows"], stored.values.tensors["rows"])


class ReadOnlyLayer(OwnLayer):
    """Rows `[1, H_kv, S, D]` that a forward reads. If `keeps`, the rows of its new tokens are appended to a copy; else
    they are ignored, because the rows given already contain them."""

    def __init__(self, held: HeldRows, seen: int, is_sliding: bool, keeps: bool) -> None:
        super().__init__()
        self.keys, self.values, self.seen, self.keeps, self.is_sliding = held.keys, held.values, seen, keeps, is_sliding
        self.dtype, self.device, self.is_initialized = held.keys.dtype, held.keys.device, True

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> Pair:
        if self.keeps:
            self.keys, self.values = torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2)
            self.seen += keys.shape[2]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        columns = self.keys.shape[2] + (query_length if self.keeps else 0)
        return columns, self.seen + query_length - columns


def read_only_cache(config: Any, layers: list[Any]) -> DynamicCache:
    """transformers' DynamicCache with these layers."""
    made = DynamicCache(config=config)
    made.layers = layers
    return made
