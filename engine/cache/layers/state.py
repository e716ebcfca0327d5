"""The state of a recurrent layer of transformers: what its convolution remembers, and what its recurrence carries."""

from __future__ import annotations

from typing import Any

import torch

from engine.cache.contract import StateMatrix

KINDS = (("conv_states", "convolution"), ("recurrent_states", "recurrence"))


def state_matrices(layer: Any) -> tuple[StateMatrix, ...]:
    """The tensors `[B, …]` of its first sequence as matrices, one for each leading index where they have more
    dimensions; none of a layer that keeps no state, or has not read a token yet."""
    found: list[StateMatrix] = []
    for attribute, name in KINDS:
        for tensor in getattr(layer, attribute, {}).values():
            if isinstance(tensor, torch.Tensor) and tensor.dim() > 1:
                first = tensor[0] if tensor.dim() > 2 else tensor[:1]
                matrices = first.flatten(0, -3) if first.dim() > 2 else first[None]
                found += [StateMatrix(name, matrix, tuple(tensor.shape)) for matrix in matrices]
    return tuple(found)
