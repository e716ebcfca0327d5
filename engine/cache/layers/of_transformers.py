"""The base of all handles of layers that transformers makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from engine.cache.contract import HeldBytes, StateMatrix
from engine.cache.layers.layer_handle import LayerHandle
from engine.cache.row_delta import NO_ROWS, RowDelta
from engine.cache.stored import StoredLayer
from engine.spec.codec import Part


class LayerOfTransformers(LayerHandle):
    """The handle of a layer that transformers makes; used directly for layers without K and V."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.has_state = hasattr(layer, "conv_states")

    def held_bytes(self) -> HeldBytes:
        """All storage of the layer. Without rows all of it is state."""
        reserved = sum(int(tensor.untyped_storage().nbytes()) for tensor in distinct_storages(self.layer))
        rows = self.rows()
        if rows is None:
            return HeldBytes(reserved, reserved)
        in_rows = {id(self.layer.keys), id(self.layer.values)}
        beside = sum(int(t.nbytes) for t in tensors_of(self.layer) if id(t) not in in_rows)
        return HeldBytes(min(int(rows.keys.nbytes + rows.values.nbytes) + beside, reserved), reserved)

    def states(self) -> tuple[StateMatrix, ...]:
        """The state of the layer's first sequence, as matrices."""
        return tuple(found for kind, _, tensor in states_of(self.layer) for found in matrices_of(kind, tensor))

    def commit(self, written: RowDelta) -> RowDelta:
        return RowDelta(NO_ROWS)

    def num_final(self, part: Part, num_tokens: int) -> int:
        rows = self.rows()
        return 0 if rows is None or rows.first else min(rows.keys.shape[2], num_tokens)

    def stored_states(self) -> dict[str, torch.Tensor]:
        return {f"{kind}.{number}": tensor.clone() for kind, number, tensor in states_of(self.layer)}

    def restore_states(self, states: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in states.items():
            kind, number = name.rsplit(".", 1)
            if kind == "convolution":
                self.layer.lazy_initialization(conv_states=tensor, state_idx=int(number))
                self.layer.conv_states[int(number)].copy_(tensor)
                self.layer.has_previous_state[int(number)] = True
            else:
                self.layer.lazy_initialization(recurrent_states=tensor, state_idx=int(number))
                self.layer.recurrent_states[int(number)].copy_(tensor)

    def first_position(self) -> int:
        rows = self.rows()
        return 0 if rows is None else rows.first

    def restore(self, stored: StoredLayer) -> None:
        self.layer.update(stored.keys.tensors["rows"], stored.values.tensors["rows"])


def tensors_of(layer: Any) -> Iterator[torch.Tensor]:
    """Every tensor that a layer object holds, whatever its attributes are named."""
    for value in vars(layer).values():
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,):
            if isinstance(item, torch.Tensor) and item.dim() > 0:
                yield item


def distinct_storages(layer: Any) -> list[torch.Tensor]:
    """One tensor per storage: some layers alias values to keys, and a sliced view keeps its whole storage alive."""
    return list({t.untyped_storage().data_ptr(): t for t in tensors_of(layer)}.values())


# the state of recurrent layers: the convolution's last inputs and the recurrence's state
KINDS = (("conv_states", "convolution"), ("recurrent_states", "recurrence"))


def states_of(layer: Any) -> Iterator[tuple[str, int, torch.Tensor]]:
    """The state tensors `[B, …]` of a layer as (kind, number, tensor); none where it has no state or has seen no
    token."""
    for attribute, kind in KINDS:
        for number, tensor in getattr(layer, attribute, {}).items():
            if isinstance(tensor, torch.Tensor) and tensor.dim() > 1:
                yield kind, number, tensor


def matrices_of(kind: str, tensor: torch.Tensor) -> list[StateMatrix]:
    """The first sequence of a tensor `[B, …]` as matrices, one for each index of its leading dimensions."""
    first = tensor[0] if tensor.dim() > 2 else tensor[:1]
    matrices = first.flatten(0, -3) if first.dim() > 2 else first[None]
    return [StateMatrix(kind, matrix, tuple(tensor.shape)) for matrix in matrices]
