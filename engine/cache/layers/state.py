"""The state of transformers' recurrent layers: the convolution's last inputs and the recurrence's state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from engine.cache.contract import StateMatrix

KINDS = (("conv_states", "convolution"), ("recurrent_states", "recurrence"))


def states_of(layer: Any) -> Iterator[tuple[str, int, torch.Tensor]]:
    """The state tensors `[B, …]` of a layer as (kind, number, tensor); none where it has no state or has seen no
    token."""
    for attribute, kind in KINDS:
        for number, tensor in getattr(layer, attribute, {}).items():
            if isinstance(tensor, torch.Tensor) and tensor.dim() > 1:
                yield kind, number, tensor


def state_matrices(layer: Any) -> tuple[StateMatrix, ...]:
    """The state of the layer's first sequence, as matrices."""
    return tuple(found for kind, _, tensor in states_of(layer) for found in matrices_of(kind, tensor))


def matrices_of(kind: str, tensor: torch.Tensor) -> list[StateMatrix]:
    """The first sequence of a tensor `[B, …]` as matrices, one for each index of its leading dimensions."""
    first = tensor[0] if tensor.dim() > 2 else tensor[:1]
    matrices = first.flatten(0, -3) if first.dim() > 2 else first[None]
    return [StateMatrix(kind, matrix, tuple(tensor.shape)) for matrix in matrices]


def copies_of_states(layer: Any) -> dict[str, torch.Tensor]:
    """Copies of the state tensors by name, `kind.number`."""
    return {f"{kind}.{number}": tensor.clone() for kind, number, tensor in states_of(layer)}


def put_states(layer: Any, states: Mapping[str, torch.Tensor]) -> None:
    """Set the state of a layer that has seen no token, as if its own forward had left it."""
    for name, tensor in states.items():
        kind, number = name.rsplit(".", 1)
        if kind == "convolution":
            layer.lazy_initialization(conv_states=tensor, state_idx=int(number))
            layer.conv_states[int(number)].copy_(tensor)
            layer.has_previous_state[int(number)] = True
        else:
            layer.lazy_initialization(recurrent_states=tensor, state_idx=int(number))
            layer.recurrent_states[int(number)].copy_(tensor)
