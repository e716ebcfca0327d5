"""What the cache layers of our own have in common."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from transformers.cache_utils import CacheLayerMixin

from engine.cache.by_hand import put
from engine.cache.contract import HeldRows, Pair, RowDelta, StateMatrix, StoredLayer, rows_from, stored_rows
from engine.spec.codec import Part


class OwnLayer(CacheLayerMixin):  # type: ignore[misc]
    """A layer of ours: it honours transformers' contract and is its own handle."""

    keeps_all_rows = False
    takes_rows = True
    has_state = False

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object) -> Pair:
        """What a forward calls: `append`, and before the first rows `lazy_initialization`."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self.append(key_states, value_states)

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> Pair:
        """Add rows `[B, H_kv, T, D]`; returns what attention reads, `[B, H_kv, S + T, D]`."""
        raise NotImplementedError

    def get_max_length(self) -> int:
        return -1  # transformers' word for "no maximum"

    def rows_at(self, num_tokens: int) -> HeldRows | None:
        return self.rows()

    def rows(self) -> HeldRows | None:
        raise NotImplementedError

    def newest_rows(self, first_position: int) -> HeldRows | None:
        return rows_from(self.rows(), first_position)

    def row_positions(self) -> torch.Tensor | None:
        return None

    def states(self) -> tuple[StateMatrix, ...]:
        return ()

    def reserve(self, num_new: int) -> None:
        """Most layers grow when rows come."""

    def commit(self, written: RowDelta) -> RowDelta:
        return written

    def num_final(self, part: Part) -> int:
        return int(self.get_seq_length())

    def knows(self, num_tokens: int) -> bool:
        return True

    def can_crop(self, num_tokens: int) -> bool:
        return True

    def stored(self, num_tokens: int) -> StoredLayer | None:
        return stored_rows(self.rows(), num_tokens)

    def stored_states(self) -> dict[str, torch.Tensor]:
        return {}

    def restore_states(self, states: Mapping[str, torch.Tensor]) -> None:
        """It has rows alone."""

    def first_position(self) -> int:
        return 0

    def write_rows(self, part: Part, heads: torch.Tensor, slots: torch.Tensor, numbers: torch.Tensor) -> None:
        rows = self.rows()
        assert rows is not None, "a layer without rows is not edited"
        put((rows.keys if part == "keys" else rows.values)[0], heads, slots, numbers)

    def restore(self, stored: StoredLayer) -> None:
        self.update(stored.keys.tensors["rows"], stored.values.tensors["rows"])
