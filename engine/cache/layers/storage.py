"""What a layer object of transformers has in memory, whatever its class calls it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def tensors_of(layer: Any) -> Iterator[torch.Tensor]:
    """Every tensor a layer object holds, whatever its class calls them."""
    for value in vars(layer).values():
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,):
            if isinstance(item, torch.Tensor) and item.dim() > 0:
                yield item


def distinct_storages(layer: Any) -> list[torch.Tensor]:
    """One tensor per storage: some layers alias values to keys, and a sliced view keeps its whole storage alive."""
    return list({t.untyped_storage().data_ptr(): t for t in tensors_of(layer)}.values())


def storage_bytes(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().nbytes())
