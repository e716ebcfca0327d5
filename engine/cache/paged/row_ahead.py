"""The row of a token that is not yet part of the sequence: its forward runs ahead, and its room in the pages is given
back until the step takes it again."""

from __future__ import annotations

import torch

from engine.cache.paged.evicting import EvictingPages


class RowAheadPages(EvictingPages):
    """The part of a paged cache that lets a forward write one row ahead of the counted tokens."""

    _uncounted_in: list[int]  # for each table, the page that has the uncounted row

    def can_write_ahead(self, num_tokens: int, num_sequences: int = 1) -> bool:
        """Whether the row at position `num_tokens` can be written ahead.

        Not if that takes a page out of a window that is still read at `num_tokens`. If the row starts a new page, the
        next pages of the pool must be free: the page is in no table and no event names it until the step takes the same
        page again. It must not be a cached page, whose tokens would be lost for nothing if the text ends there; nor may
        the page that is now full be replaced by a duplicate, or be copied to the host, which waits for all queued work.
        """
        if self.by_hand or self.num_source or self.keeper is not None or self._unpaged:
            return False
        size, may_begin = self.store.page_size, not (self.store.spec.replace_duplicates or self.store.host)
        for group, table in zip(self.store.groups, self.tables, strict=True):
            if group.window is not None and (num_tokens - group.window + 1) // size > table.num_slid_pages:
                return False
            begins = table.num_slack_tokens == 0 and may_begin and group.pool.are_next_free(num_sequences)
            if not (begins or group.pool.has_room(table, 1)):
                return False
        return True

    def uncount_row(self, num_tokens: int) -> None:
        self._uncounted_in = [table.page_ids[-1] for table in self.tables]
        self._undo_append(num_tokens)

    def count_row(self) -> None:
        """Nothing to do: `begin` has counted the row in the tables, and must have given it the same page again."""
        assert self._uncounted_in == [table.page_ids[-1] for table in self.tables]

    @torch.inference_mode()
    def clear_row_ahead(self, num_tokens: int) -> None:
        self._undo_append(num_tokens)
        for group, table in zip(self.store.groups, self.tables, strict=True):
            if table.num_slack_tokens:  # else the row is in a free page, where nobody reads it
                slot = table.slot(num_tokens - 1) + 1
                for layer in group.layers:
                    for rows in self.store.rows_of[layer.index]:
                        rows.clear(slice(slot, slot + 1))

    def _undo_append(self, num_tokens: int) -> None:
        """Take the room of the row at position `num_tokens` back out of the tables, where it is counted."""
        for group, table in zip(self.store.groups, self.tables, strict=True):
            if table.num_tokens > num_tokens:
                group.pool.undo_append(table)
