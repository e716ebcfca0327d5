"""The handle of a layer that is none of ours: what is common to those of all kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from engine.cache.by_hand import put
from engine.cache.contract import (
    NO_ROWS,
    HeldBytes,
    HeldRows,
    RowDelta,
    StateMatrix,
    StoredLayer,
    rows_from,
    stored_rows,
)
from engine.cache.layers.state import copies_of_states, put_states, state_matrices
from engine.cache.layers.storage import distinct_storages, storage_bytes, tensors_of
from engine.spec.codec import Part


class LayerOfTransformers:
    """The handle of a layer that is none of ours: by itself, of one without K and V."""

    keeps_all_rows = False
    takes_rows = False

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.has_state = hasattr(layer, "conv_states")

    def rows(self) -> HeldRows | None:
        return None

    def rows_at(self, num_tokens: int) -> HeldRows | None:
        return self.rows()

    def newest_rows(self, first_position: int) -> HeldRows | None:
        return rows_from(self.rows(), first_position)

    def row_positions(self) -> torch.Tensor | None:
        return None

    def held_bytes(self) -> HeldBytes:
        """Where it keeps no rows, all of its storage is state."""
        reserved = sum(storage_bytes(tensor) for tensor in distinct_storages(self.layer))
        rows = self.rows()
        if rows is None:
            return HeldBytes(reserved, reserved)
        in_rows = {id(self.layer.keys), id(self.layer.values)}
        beside = sum(int(t.nbytes) for t in tensors_of(self.layer) if id(t) not in in_rows)
        return HeldBytes(min(int(rows.keys.nbytes + rows.values.nbytes) + beside, reserved), reserved)

    def states(self) -> tuple[StateMatrix, ...]:
        return state_matrices(self.layer)

    def reserve(self, num_new: int) -> None:
        """transformers' layers grow when rows come."""

    def commit(self, written: RowDelta) -> RowDelta:
        return RowDelta(NO_ROWS)

    def num_final(self, part: Part) -> int:
        rows = self.rows()
        return 0 if rows is None else rows.keys.shape[2]

    def knows(self, num_tokens: int) -> bool:
        return True  # it has no rows to lose

    def can_crop(self, num_tokens: int) -> bool:
        return not self.has_state

    def crop(self, num_tokens: int) -> int:
        return 0

    def stored(self, num_tokens: int) -> StoredLayer | None:
        return stored_rows(self.rows(), num_tokens)

    def stored_states(self) -> dict[str, torch.Tensor]:
        return copies_of_states(self.layer)

    def restore_states(self, states: Mapping[str, torch.Tensor]) -> None:
        put_states(self.layer, states)

    def first_position(self) -> int:
        rows = self.rows()
        return 0 if rows is None else rows.first

    def write_rows(self, part: Part, heads: torch.Tensor, slots: torch.Tensor, numbers: torch.Tensor) -> None:
        """What it is asked for are its own tensors, in which it is written."""
        rows = self.rows()
        assert rows is not None, "a layer without rows is not edited"
        put((rows.keys if part == "keys" else rows.values)[0], heads, slots, numbers)

    def restore(self, stored: StoredLayer) -> None:
        self.layer.update(stored.keys.tensors["rows"], stored.values.tensors["rows"])
