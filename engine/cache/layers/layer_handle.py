"""What the rest of the program may ask of the cache of one layer, answered as most layers do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from engine.cache.by_hand import put
from engine.cache.contract import HeldBytes, HeldRows, StateMatrix, rows_from
from engine.cache.row_delta import RowDelta
from engine.cache.stored import StoredLayer, stored_rows
from engine.spec.codec import Part


class LayerHandle:
    """One layer of one sequence's cache. There is one class for each kind of layer; nobody asks which it is.
    What is not said otherwise holds of rows that stand in one run, each written once, and never dropped.

    `keeps_all_rows`: it holds every row, in order and as it was computed, and nothing else, so that another layout can
    be filled from it. `takes_rows`: rows computed elsewhere may be written to it. `has_state`: beside rows it keeps
    what only moves forward, a recurrent state or an indexer's keys.
    """

    keeps_all_rows = False
    takes_rows = False
    has_state = False

    def rows(self) -> HeldRows | None:
        """The rows held, as attention reads them, as views where they are exact; None where there is no K and V."""
        return None

    def rows_at(self, num_tokens: int) -> HeldRows | None:
        """The rows when the sequence had so many tokens, as far as `knows` says; later ones may stand behind them."""
        return self.rows()

    def newest_rows(self, first_position: int) -> HeldRows | None:
        """The rows from a position on, none of which was dropped yet; None where there are none of them."""
        return rows_from(self.rows(), first_position)

    def row_positions(self) -> torch.Tensor | None:
        """Positions `[H_kv, S]` of the rows held; None where they are one run."""
        return None

    def held_bytes(self) -> HeldBytes:
        """What it takes."""
        raise NotImplementedError

    def noted_bytes(self) -> Iterable[tuple[int, int]]:
        """Of these, what is noted for going back and never written again, by its identity: copies share it."""
        return ()

    def states(self) -> tuple[StateMatrix, ...]:
        """What it keeps beside rows that moves on with every token and does not grow."""
        return ()

    def reserve(self, num_new: int) -> None:
        """Room for `num_new` more rows; a failed allocation changes nothing."""

    @property
    def has_row_behind(self) -> bool:
        """Whether there is room for a row behind those that are held which is none of them yet: `hide_row`."""
        return False

    def hide_row(self) -> None:
        """The newest row is written, and not counted."""
        raise NotImplementedError

    def count_row(self) -> None:
        """A row was written behind those that are counted, and is one of them."""
        raise NotImplementedError

    def commit(self, written: RowDelta) -> RowDelta:
        """A step is done: what it did to the rows, where it did more than `written`."""
        return written

    def num_final(self, part: Part) -> int:
        """How many rows, from the first held on, no later step will write anew; they may be dropped."""
        raise NotImplementedError

    def decodes(self, num_tokens: int) -> bool:
        """Whether any of the rows of the first so many tokens are decoded for attention."""
        return False

    def knows(self, num_tokens: int) -> bool:
        """Whether `rows_at` that many tokens are those that stood there then, bit for bit."""
        return True

    def can_crop(self, num_tokens: int) -> bool:
        """Whether `crop` to so many tokens is exact."""
        return not self.has_state

    def crop(self, num_tokens: int) -> int:
        """Back to the state after `num_tokens` tokens; returns how many dropped rows were restored."""
        return 0

    def stored(self, num_tokens: int) -> StoredLayer | None:
        """What is kept of the first `num_tokens` tokens, as far as `knows` says; None where there are no rows."""
        return stored_rows(self.rows(), num_tokens)

    def restore(self, stored: StoredLayer) -> None:
        """Fill the layer, which is empty, with what `stored` gave in another one of its kind."""
        raise NotImplementedError

    def stored_states(self) -> dict[str, torch.Tensor]:
        """A copy of what it keeps of a recurrence, by name; a step writes to the tensors themselves."""
        return {}

    def restore_states(self, states: Mapping[str, torch.Tensor]) -> None:
        """Keep what `stored_states` gave of another layer of its kind; this one has read no token."""

    def first_position(self) -> int:
        """Where the first row held stands, if they are one run."""
        return 0

    def write_rows(self, part: Part, heads: torch.Tensor, slots: torch.Tensor, numbers: torch.Tensor) -> None:
        """Put numbers `[N, T, D]` in the place of those held of kv heads `[N]` in slots `[N, T]`, written as the layer
        writes rows."""
        rows = self.rows()
        assert rows is not None, "a layer without rows is not edited"
        put((rows.keys if part == "keys" else rows.values)[0], heads, slots, numbers)
