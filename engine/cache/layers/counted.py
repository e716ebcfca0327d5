"""transformers' static layer, which also knows its length without asking the device."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import StaticLayer

from engine.cache.contract import Pair


class CountedStaticLayer(StaticLayer):  # type: ignore[misc]
    """transformers keeps the length in a tensor on the device: to read it there is to wait for all that was begun.
    `num_rows` is the same number."""

    num_rows = 0
    is_ahead = False  # of the number on the device

    def count_row(self) -> None:
        """A row was written behind those that are there; the number on the device follows when it is needed."""
        self.num_rows += 1
        self.is_ahead = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Pair:
        if self.is_ahead:
            self.cumulative_length.fill_(self.num_rows)
            self.is_ahead = False
        pair: Pair = super().update(key_states, value_states, *args, **kwargs)
        self.num_rows += key_states.shape[-2]
        return pair

    def get_seq_length(self) -> int:
        return self.num_rows

    def reset(self) -> None:
        super().reset()
        self.num_rows, self.is_ahead = 0, False


def counted(layer: Any) -> Any:
    """A static layer, still empty, as one that counts; any other as it is."""
    return CountedStaticLayer(layer.max_cache_len) if type(layer) is StaticLayer else layer
