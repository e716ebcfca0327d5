"""The interface through which the rest of the program uses the cache of one layer, with default answers."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from engine.cache.by_hand import write_slots
from engine.cache.contract import HeldBytes, HeldRows, StateMatrix, rows_from
from engine.cache.row_delta import RowDelta
from engine.cache.stored import StoredLayer, stored_rows
from engine.spec.codec import Part


class LayerHandle:
    """One layer of one sequence's cache. There is a subclass for each kind of layer, and callers never check which one
    it is. The defaults are right for rows that are consecutive, written once and never evicted.

    `keeps_all_rows`: the layer holds every row, in order and as computed, and nothing else, so that a cache in another
    layout can be filled from it. `takes_rows`: rows computed elsewhere may be appended to it. `has_state`: beside rows
    it keeps a recurrent state or an indexer's keys, which cannot go back.
    """

    keeps_all_rows = False
    takes_rows = False
    has_state = False

    def rows(self) -> HeldRows | None:
        """The rows held, as attention reads them; views where they are stored exactly. None where the layer has no K
        and V."""
        return None

    def rows_at(self, num_tokens: int | None = None, first_position: int | None = None) -> HeldRows | None:
        """The rows when the sequence had `num_tokens` tokens, for which `knows` must hold (None: now); rows of later
        tokens may follow them. With `first_position` only those from there on, none of which has been evicted yet; None
        where there are none."""
        return self.rows() if first_position is None else rows_from(self.rows(), first_position)

    def newest(self, part: Part, first_position: int, num_tokens: int | None = None) -> torch.Tensor:
        """K or V `[H_kv, T, D]` of `rows_at` from a position on, of which there are some; the other part is not read
        where that can be avoided."""
        rows = self.rows_at(num_tokens)
        assert rows is not None, "there are rows from that position on"
        return (rows.keys if part == "keys" else rows.values)[0, :, max(0, first_position - rows.first) :]

    def row_positions(self) -> torch.Tensor | None:
        """Positions `[H_kv, S]` of the rows held; None where they are consecutive and end with the newest token."""
        return None

    def held_bytes(self) -> HeldBytes:
        """The bytes that the layer takes."""
        raise NotImplementedError

    def states(self) -> tuple[StateMatrix, ...]:
        """The recurrent state, which every token changes and which does not grow; empty where there is none."""
        return ()

    def reserve(self, num_new: int) -> None:
        """Make room for `num_new` more rows; a failed allocation changes nothing."""

    @property
    def can_write_ahead(self) -> bool:
        """Whether there is room for one more row after the counted ones, which `uncount_row` keeps uncounted."""
        return False

    def uncount_row(self) -> None:
        """Stop counting the newest row; its numbers stay written."""
        raise NotImplementedError

    def count_row(self) -> None:
        """Count the row that was written after the counted ones."""
        raise NotImplementedError

    def commit(self, written: RowDelta) -> RowDelta:
        """Conclude a step and return what it did to the rows, where that is more than `written`."""
        return written

    def num_final(self, part: Part, num_tokens: int) -> int:
        """How many of the rows held at `num_tokens` tokens, for which `knows` must hold, no later step has overwritten
        or will: positions 0, 1, 2 … from the first on. 0 where any of them was evicted since."""
        raise NotImplementedError

    def exact_from(self, num_tokens: int, part: Part) -> int:
        """The position from which on K or V of the first `num_tokens` tokens is exact: attention reads the rows before
        it from quantised codes. 0 where every row is exact, `num_tokens` where none is."""
        return 0

    def knows(self, num_tokens: int) -> bool:
        """Whether `rows_at(num_tokens)` are, bit for bit, the rows that the layer held when there were `num_tokens`
        tokens."""
        return True

    def can_crop(self, num_tokens: int) -> bool:
        """Whether `crop(num_tokens)` is exact."""
        return not self.has_state

    def crop(self, num_tokens: int) -> int:
        """Go back to the state after `num_tokens` tokens; returns how many evicted rows were restored."""
        return 0

    def stored(self, num_tokens: int) -> StoredLayer | None:
        """The contents of the layer at `num_tokens` tokens, for which `knows` must hold; None where there are no
        rows."""
        return stored_rows(self.rows(), num_tokens)

    def restore(self, stored: StoredLayer) -> None:
        """Fill the layer, which is empty, with what `stored` returned for another layer of its kind."""
        raise NotImplementedError

    def stored_states(self) -> dict[str, torch.Tensor]:
        """Copies of the recurrent state's tensors, by name: steps overwrite the tensors themselves."""
        return {}

    def restore_states(self, states: Mapping[str, torch.Tensor]) -> None:
        """Set the recurrent state to what `stored_states` returned for another layer of its kind; this one has seen no
        token."""

    def first_position(self) -> int:
        """The position of the first row held, if rows are consecutive."""
        return 0

    def write_rows(self, part: Part, heads: torch.Tensor, slots: torch.Tensor, numbers: torch.Tensor) -> None:
        """Overwrite K or V of some rows with numbers `[N, T, D]`: of kv heads `[N]`, in slots `[N, T]`; encoded as the
        layer encodes its own rows."""
        rows = self.rows()
        assert rows is not None, "a layer without rows is not edited"
        write_slots((rows.keys if part == "keys" else rows.values)[0], heads, slots, numbers)
