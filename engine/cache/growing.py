"""Preallocated room that doubles: appending a row writes that row and nothing else."""

from __future__ import annotations

import torch
from transformers.cache_utils import CacheLayerMixin

FIRST_CAPACITY = 64


class GrowingLayer(CacheLayerMixin):  # type: ignore[misc]
    """K and V of one layer in buffers `[B, H_kv, capacity, D]`, of which the first `length` rows hold tokens.

    transformers' DynamicLayer concatenates, so every step copies the whole cache; here a step copies its new rows, and
    each row is copied once more, on average, over all the doublings. Sliding layers keep their whole history too: the
    mask restricts what is read, and every past step stays a prefix of the present.
    """

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.length = 0

    # ---- transformers' contract ----------------------------------------------------------------------------------

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        capacity = capacity_for(key_states.shape[2])
        self.keys = key_states.new_empty(*key_states.shape[:2], capacity, key_states.shape[3])
        self.values = value_states.new_empty(*value_states.shape[:2], capacity, value_states.shape[3])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append rows `[B, H_kv, T, D]`; returns views of all rows, `[B, H_kv, S + T, D]`."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        num_new = key_states.shape[2]
        self.reserve(num_new)
        start, stop = self.length, self.length + num_new
        self.keys[:, :, start:stop] = key_states
        self.values[:, :, start:stop] = value_states
        self.length = stop
        return self.held_keys, self.held_values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1  # transformers' word for "no maximum"

    # ---- ours ----------------------------------------------------------------------------------------------------

    @property
    def held_keys(self) -> torch.Tensor:
        return self.keys[:, :, : self.length]

    @property
    def held_values(self) -> torch.Tensor:
        return self.values[:, :, : self.length]

    @property
    def stored_bytes(self) -> int:
        """Bytes of the rows that hold tokens."""
        return self.length * self.reserved_bytes // self.keys.shape[2] if self.is_initialized else 0

    @property
    def reserved_bytes(self) -> int:
        """Bytes of the room, used or not."""
        return int(self.keys.nbytes + self.values.nbytes) if self.is_initialized else 0

    def reserve(self, num_new: int) -> None:
        """Room for `num_new` more rows. Both buffers are made before either is taken: a failure changes nothing."""
        if not self.is_initialized or self.length + num_new <= self.keys.shape[2]:
            return
        capacity = capacity_for(self.length + num_new)
        keys, values = grown(self.keys, self.length, capacity), grown(self.values, self.length, capacity)
        self.keys, self.values = keys, values

    def crop(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` rows. The room stays."""
        self.length = min(self.length, num_tokens)


def capacity_for(num_tokens: int) -> int:
    """The next power of two, at least 64."""
    return max(FIRST_CAPACITY, 1 << (num_tokens - 1).bit_length())


def grown(buffer: torch.Tensor, length: int, capacity: int) -> torch.Tensor:
    larger = buffer.new_empty(*buffer.shape[:2], capacity, buffer.shape[3])
    larger[:, :, :length] = buffer[:, :, :length]
    return larger
