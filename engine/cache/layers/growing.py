"""Preallocated buffers that double in size: appending a row copies that row and, while there is room, nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.cache.contract import HeldBytes, HeldRows, Pair
from engine.cache.layers.layer_handle import LayerHandle
from engine.cache.layers.own import OwnLayer
from engine.cache.stacking import evenly_spaced
from engine.predict.capacity import grown_capacity
from engine.spec.codec import Part

SHARED_CAPACITY = 512  # rows; larger buffers are allocated for each layer separately


class LayerBuffers:
    """Buffers of all layers of a small cache, side by side in one storage `[L, B, H_kv, capacity, D]`.

    What is computed for every layer at every step can then be computed for all layers in one operation.
    """

    def __init__(self, num_layers: int) -> None:
        self._num_layers = num_layers
        self._blocks: dict[str, torch.Tensor] = {}

    def buffer(self, name: str, layer: int, like: torch.Tensor, capacity: int) -> torch.Tensor:
        """An uninitialised buffer `[B, H_kv, capacity, D]` for one layer: a part of the shared storage, or a separate
        tensor where it is large or has another shape, dtype or device."""
        shape = (*like.shape[:2], capacity, like.shape[3])
        if capacity > SHARED_CAPACITY:
            self._blocks.pop(name, None)
            return like.new_empty(shape)
        block = self._blocks.get(name)
        is_alike = block is not None and (*block.shape[1:3], block.shape[4], block.dtype, block.device) == (
            *like.shape[:2], like.shape[3], like.dtype, like.device,
        )  # fmt: skip
        if block is not None and not is_alike:
            return like.new_empty(shape)
        if block is None or block.shape[3] != capacity:
            block = self._blocks[name] = like.new_empty((self._num_layers, *shape))
        return block[layer]


class GrowingLayer(OwnLayer):
    """K and V of one layer in buffers `[B, H_kv, capacity, D]`, of which the first `length` rows hold tokens.

    transformers' DynamicLayer concatenates, so every step copies the whole cache; here a step copies its new rows, and
    each row is copied once more, on average, over all the doublings. Sliding layers keep their whole history too: the
    mask restricts what is read, and every past step stays a prefix of the present.
    """

    is_sliding = False
    keeps_all_rows = True

    def __init__(self, buffers: LayerBuffers | None = None, index: int = 0) -> None:
        super().__init__()
        self._buffers, self._index = buffers or LayerBuffers(1), index
        self.length = 0
        self.reserved_bytes = 0  # bytes of both buffers, used or not

    # ---- transformers' contract ----------------------------------------------------------------------------------

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        capacity = grown_capacity(key_states.shape[2])
        self.keys = self._buffers.buffer("keys", self._index, key_states, capacity)
        self.values = self._buffers.buffer("values", self._index, value_states, capacity)
        self.reserved_bytes = int(self.keys.nbytes + self.values.nbytes)
        self.is_initialized = True

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> Pair:
        first, num_new = self.length, keys.shape[2]
        if first + num_new > self.keys.shape[2]:
            self.reserve(num_new)
        held_keys, held_values = self.keys, self.values
        held_keys.narrow(2, first, num_new).copy_(keys)
        held_values.narrow(2, first, num_new).copy_(values)
        self.length = first + num_new
        return held_keys.narrow(2, 0, self.length), held_values.narrow(2, 0, self.length)

    def count_row(self) -> None:
        self.length += 1

    def uncount_row(self) -> None:
        self.length -= 1

    @property
    def can_write_ahead(self) -> bool:
        return self.is_initialized and self.length < self.keys.shape[2]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    # ---- LayerHandle ---------------------------------------------------------------------------------------------

    @property
    def held_keys(self) -> torch.Tensor:
        return self.keys.narrow(2, 0, self.length)

    @property
    def held_values(self) -> torch.Tensor:
        return self.values.narrow(2, 0, self.length)

    def rows(self) -> HeldRows | None:
        return HeldRows(self.held_keys, self.held_values, 0) if self.is_initialized else None

    def held_bytes(self) -> HeldBytes:
        stored = self.length * self.reserved_bytes // self.keys.shape[2] if self.is_initialized else 0
        return HeldBytes(stored, self.reserved_bytes)

    def reserve(self, num_new: int) -> None:
        """Make room for `num_new` more rows. Both buffers are allocated before either replaces the old one, so a
        failure changes nothing."""
        if not self.is_initialized or self.length + num_new <= self.keys.shape[2]:
            return
        capacity = grown_capacity(self.length + num_new)
        keys = grown(self.keys, self.length, self._buffers.buffer("keys", self._index, self.keys, capacity))
        values = grown(self.values, self.length, self._buffers.buffer("values", self._index, self.values, capacity))
        self.keys, self.values = keys, values
        self.reserved_bytes = int(keys.nbytes + values.nbytes)

    def crop(self, num_tokens: int) -> int:
        """Keep the first `num_tokens` rows and zero the others: a replayed step reads the whole buffer with a weight of
        zero, and zero times NaN is NaN."""
        if num_tokens < self.length:
            for held in (self.held_keys, self.held_values):
                held[:, :, num_tokens:].zero_()
            self.length = num_tokens
        return 0


def grown(buffer: torch.Tensor, length: int, larger: torch.Tensor) -> torch.Tensor:
    """Copy the first `length` rows of a buffer into a larger one, and return that."""
    larger[:, :, :length] = buffer[:, :, :length]
    return larger


def stacked_rows(layers: Sequence[LayerHandle], part: Part, first_position: int) -> torch.Tensor | None:
    """A view `[L, H_kv, T, D]` of K or V of the rows from `first_position` on, of layers that share one storage. None
    where they do not, some layer is not a `GrowingLayer`, or has no such rows."""
    growing = [layer for layer in layers if isinstance(layer, GrowingLayer) and layer.is_initialized]
    count = min([layer.length for layer in growing], default=0) - first_position
    if len(growing) < len(layers) or count <= 0:
        return None
    buffers = evenly_spaced([getattr(layer, part) for layer in growing])
    return None if buffers is None else buffers[:, 0].narrow(2, first_position, count)
