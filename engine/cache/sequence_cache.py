"""The K and V of one sequence: the interface of a cache for all code outside this folder, whatever its layout."""

from __future__ import annotations

from collections.abc import Sequence
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
    """The cache of one sequence in a contiguous layout, and the base of the paged one. Beside taking part in steps it
    can be filled from another cache, stored and restored. Methods that only pages can do something in do nothing
    here."""

    max_forward_tokens: int | None = None  # most tokens that one forward may feed; None: no limit
    tables: list[PageTable]  # in a paged layout only

    def clear(self) -> None:
        """Drop all rows and edits: the cache is as new."""
        self._set_live(self._build())
        self.num_tokens, self.by_hand = 0, UNTOUCHED

    def close(self) -> None:
        """Release what is shared with other sequences; the sequence is removed."""

    def shrink_journal(self, max_bytes: int) -> None:
        """Drop the oldest contents of the journal, kept for going back, until at most `max_bytes` are left."""

    def forget_journal(self) -> None:
        """Drop the journal: from now on nothing before the present can be restored from it."""

    # ---- what pages can do -------------------------------------------------------------------------------------------

    def admit(self, token_ids: Sequence[int], spare_pages: int, at_most: int | None = None) -> int:
        """Start with the rows of a known prefix of these tokens. Returns how many tokens were reused, at most
        `at_most`; contiguous layouts reuse none."""
        return 0

    def copy_from(self, other: SequenceCache) -> None:
        """Fill this cache, which is empty, with the rows of a cache of the same mode in another pool."""
        raise NotImplementedError("only pages lie in pools")

    def page_counts(self) -> PageCounts:
        """Pages held, shared and found by prefix, and why no more were reused; all zero outside paged layouts."""
        return PageCounts()

    def unshare_last_page(self) -> None:
        """Make the page of the last token safe to write, by a copy if other sequences share it; nothing outside paged
        layouts."""

    def set_owner(self, seq_id: int) -> None:
        """Note that this cache's pages belong to `seq_id`, or to a saved moment; nothing outside paged layouts."""

    def page_ids_at(self, num_tokens: int) -> list[list[int]]:
        """For each page table, the pages in logical order when the sequence had `num_tokens` tokens; empty outside
        paged layouts."""
        return []

    def register_prefix(self, token_ids: Sequence[int]) -> None:
        """Register the full pages of these tokens so that other sequences find them; nothing outside paged layouts."""

    # ---- rows of another cache ---------------------------------------------------------------------------------------

    @torch.inference_mode()
    def fork_from(self, other: SequenceCache, num_tokens: int, *, as_itself: bool = False) -> bool:
        """Fill this cache with what another one of the same layout held at `num_tokens` tokens. Returns False, and
        leaves this cache empty, where that cannot be copied exactly. `as_itself`: it is the same sequence at an earlier
        moment, and keeps its journal."""
        if self.spec.recomputes:
            # safe to share: every step recomputes into a new cache and never writes to this one
            self._set_live(other.live)
            self.num_tokens = other.num_tokens
        elif other.spec == self.spec and num_tokens == other.num_tokens and not other.keeps_all_rows:
            self.copy_layers(other)  # layers that cannot crop, or have evicted rows, are copied as they are
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
        """Fill this cache with the rows of another layout and with its edits by hand. Returns False, and does nothing,
        if they cannot be carried over exactly."""
        if self.spec.recomputes or other.spec.recomputes:
            return self.spec.recomputes
        if not all(layer.takes_rows for layer in self.layers) or not other.keeps_all_rows:
            return False
        self._append_rows_of(other)
        self.num_tokens, self.by_hand = other.num_tokens, other.by_hand
        return True

    def _append_rows_of(self, other: SequenceCache) -> None:
        """Append every layer's rows, as a forward would."""
        for index in range(len(other.layers)):
            rows = other.rows(index)
            if rows is not None and rows.keys.shape[2]:
                self.live.update(rows.keys, rows.values, index)

    def copy_layers(self, other: SequenceCache) -> None:
        """Hold a copy of the layers of a cache with the same codec and eviction rule."""
        self._set_live(self._copied_layers(other.live))

    # ---- storing and restoring -----------------------------------------------------------------------------------

    @torch.inference_mode()
    def stored(self, num_tokens: int) -> StoredCache:
        """What the cache keeps of the first `num_tokens` tokens, as views where possible; `knows(num_tokens)` must
        hold."""
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
        """Fill this cache, which is empty, with what `stored` returned for a cache of the same mode."""
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
