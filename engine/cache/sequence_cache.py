"""The K and V of one sequence, whatever layout holds them: what everything outside this room sees of a cache."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from engine.cache.by_hand import UNTOUCHED, ByHand, RowMarks
from engine.cache.contract import PageCounts
from engine.cache.stepped import SteppedRows
from engine.cache.stored import StoredCache

if TYPE_CHECKING:
    from engine.cache.paged.table import PageTable


class SequenceCache(SteppedRows):
    """The cache of one sequence in one of the contiguous layouts: beside its steps, how it takes over the rows of
    another one, and is written and read again. What only pages can do is nothing here."""

    most_at_once: int | None = None  # tokens that fit into one forward, where that has a limit
    tables: list[PageTable]  # of a paged layout

    def clear(self) -> None:
        """Forget everything."""
        self._use(self._build())
        self.num_tokens, self.by_hand = 0, UNTOUCHED

    def close(self) -> None:
        """The sequence is gone: give back what it shares with others."""

    def shrink_journal(self, max_bytes: int) -> None:
        """Forget the oldest of what is kept for going back, until so many bytes are left."""

    def forget_journal(self) -> None:
        """From here on nothing before the present can be restored from what was noted."""

    # ---- what pages can do -------------------------------------------------------------------------------------------

    def admit(self, token_ids: list[int], spare_pages: int, at_most: int | None = None) -> int:
        """Start from rows that are known already; returns how many, `at_most` so many. Contiguous layouts know none."""
        return 0

    def copy_from(self, other: SequenceCache) -> None:
        """Hold what a cache of the same mode holds, which lies in another pool; this one is empty."""
        raise NotImplementedError("only pages lie in pools")

    def page_counts(self) -> PageCounts:
        """Pages held, shared and hit, and why no more was reused; nothing outside paged layouts."""
        return PageCounts()

    def own_last_page(self) -> None:
        """Share the page of the last token with nobody, where there are pages."""

    def own(self, seq_id: int) -> None:
        """From now on its pages, where it has any, are those of `seq_id`, or of a moment that is kept."""

    def page_ids_at(self, num_tokens: int) -> list[list[int]]:
        """Pages in logical order when the sequence had so many tokens, one list a table; none outside paged layouts."""
        return []

    def register_prefix(self, token_ids: list[int]) -> None:
        """Let other sequences find what this one holds, where the layout can share."""

    # ---- rows of another cache ---------------------------------------------------------------------------------------

    @torch.inference_mode()
    def fork_from(self, other: SequenceCache, num_tokens: int, *, as_itself: bool = False) -> bool:
        """Hold what another cache of the same layout held with `num_tokens` tokens; False, and empty, where that cannot
        be copied exactly. `as_itself`: it is the same sequence at an earlier moment, and keeps what it knows of its own
        past."""
        if self.spec.recomputes:
            self._use(other.live)  # nobody writes to it: every step recomputes into a cache of its own
            self.num_tokens = other.num_tokens
        elif other.spec == self.spec and num_tokens == other.num_tokens and not other.keeps_all_rows:
            self.copy_layers(other)  # what cannot be cropped, or has dropped rows, is copied as it is
            self.num_tokens = num_tokens
        elif not self.convert_from(other):
            if other.spec != self.spec or not all(layer.can_crop(num_tokens) for layer in other.layers):
                return False
            self.copy_layers(other)
            self.num_tokens = other.num_tokens
        self.by_hand = other.by_hand
        return num_tokens == self.num_tokens or self._crop_fork(num_tokens)

    def _crop_fork(self, num_tokens: int) -> bool:
        if not self.crop(num_tokens):
            self.clear()
            return False
        return True

    @torch.inference_mode()
    def convert_from(self, other: SequenceCache) -> bool:
        """Copy the rows of another layout, and what was done to them by hand; False (and nothing done) if they cannot
        be carried over exactly."""
        if self.spec.recomputes or other.spec.recomputes:
            return self.spec.recomputes
        if not all(layer.takes_rows for layer in self.layers) or not other.keeps_all_rows:
            return False
        self._take_rows(other)
        self.num_tokens, self.by_hand = other.num_tokens, other.by_hand
        return True

    def _take_rows(self, other: SequenceCache) -> None:
        """Those of every layer, as a forward would hand them in."""
        for index in range(len(other.layers)):
            rows = other.rows(index)
            if rows is not None and rows.keys.shape[2]:
                self.live.update(rows.keys, rows.values, index)

    def copy_layers(self, other: SequenceCache) -> None:
        """Hold a copy of the layers of another cache that codes and drops alike."""
        self._use(self._copied_layers(other.live))

    # ---- written and read again --------------------------------------------------------------------------------------

    @torch.inference_mode()
    def stored(self, num_tokens: int) -> StoredCache:
        """What is kept of the first `num_tokens` tokens, as far as `knows` says, as views where it can be."""
        found = {index: layer.stored(num_tokens) for index, layer in enumerate(self.layers)}
        by_hand = self.by_hand.back_to(num_tokens)
        hidden, pinned = by_hand.hidden.layers, by_hand.pinned.layers
        layers = {
            index: replace(layer, hidden=hidden.get(index), pinned=pinned.get(index))
            for index, layer in found.items()
            if layer is not None
        }
        is_now, has_state = num_tokens == self.num_tokens, any(layer.has_state for layer in self.layers)
        states = [layer.stored_states() if is_now else {} for layer in self.layers]
        return StoredCache(
            num_tokens,
            layers,
            edited_from=by_hand.first_position,
            states={index: found for index, found in enumerate(states) if found},
            why_no_states="the states of then are not kept: go to that step" if has_state and not is_now else "",
        )

    @torch.inference_mode()
    def restore(self, stored: StoredCache) -> None:
        """Hold what `stored` gave in another cache of this mode; this one is empty."""
        for index, layer in stored.layers.items():
            self.layers[index].restore(layer)
        for index, states in stored.states.items():
            self.layers[index].restore_states(states)
        self.num_tokens = stored.num_tokens
        if stored.edited_from is not None:
            hidden = {index: layer.hidden for index, layer in stored.layers.items() if layer.hidden is not None}
            pinned = {index: layer.pinned for index, layer in stored.layers.items() if layer.pinned is not None}
            edits = ((stored.num_tokens, stored.edited_from),)
            self.by_hand = ByHand(RowMarks(hidden), RowMarks(pinned), edits)
