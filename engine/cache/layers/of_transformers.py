"""The base of all handles of layers that transformers makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from engine.cache.contract import HeldBytes, StateMatrix
from engine.cache.layers.layer_handle import LayerHandle
from engine.cache.layers.state import copies_of_states, put_states, state_matrices
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
        return state_matrices(self.layer)

    def commit(self, written: RowDelta) -> RowDelta:
        return RowDelta(NO_ROWS)

    def num_final(self, part: Part, num_tokens: int) -> int:
        rows = self.rows()
        return 0 if rows is None or rows.first else min(rows.keys.shape[2], num_tokens)

    def stored_states(self) -> dict[str, torch.Tensor]:
        return copies_of_states(self.layer)

    def restore_states(self, states: Mapping[str, torch.Tensor]) -> None:
        put_states(self.layer, states)

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
