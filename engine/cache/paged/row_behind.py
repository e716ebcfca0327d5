"""The row of a token that nobody has read yet: where in the pages of a sequence it stands, and how it is taken back."""

from __future__ import annotations

import torch

from engine.cache.paged.evicting import EvictingPages


class RowBehindPages(EvictingPages):
    """A sequence in pages, as far as the row behind those that are counted goes."""

    _hidden_in: list[int]  # pages

    def has_row_behind(self, num_tokens: int, num_sequences: int = 1) -> bool:
        """Not where a page leaves a window behind `num_tokens`: it is read up to then. A page begins for the row where
        the next of the pool are free: it stands in no table and is told to nobody until its step takes the same one.

        Not one that could be found by what it holds, which would be lost where the token ends the text; nor where the
        page that is full now gives way to a twin, or is copied to the host, which waits for all that was begun.
        """
        if self.by_hand or self.num_source or self.keeper is not None or self._unpaged:
            return False
        size, may_begin = self.store.page_size, not (self.store.spec.replace_duplicates or self.store.host)
        for group, table in zip(self.store.groups, self.tables, strict=True):
            if group.window is not None and (num_tokens - group.window + 1) // size > table.num_slid_pages:
                return False
            begins = table.num_slack_tokens == 0 and may_begin and group.pool.has_unknown(num_sequences)
            if not (begins or group.pool.has_room(table, 1)):
                return False
        return True

    def hide_row(self, num_tokens: int) -> None:
        self._hidden_in = [table.page_ids[-1] for table in self.tables]
        self._take_room_back(num_tokens)

    def count_row(self) -> None:
        """`begin` has counted it in the tables, and given it the page that it was written to."""
        assert self._hidden_in == [table.page_ids[-1] for table in self.tables]

    @torch.inference_mode()
    def clear_row_behind(self, num_tokens: int) -> None:
        self._take_room_back(num_tokens)
        for group, table in zip(self.store.groups, self.tables, strict=True):
            if table.num_slack_tokens:  # else it lies in a page that is nobody's
                slot = table.slot(num_tokens - 1) + 1
                for layer in group.layers:
                    for rows in self.store.rows_of[layer.index]:
                        rows.clear(slice(slot, slot + 1))

    def _take_room_back(self, num_tokens: int) -> None:
        """The room of the one row behind so many tokens is as if it had never been taken, where it was."""
        for group, table in zip(self.store.groups, self.tables, strict=True):
            if table.num_tokens > num_tokens:
                group.pool.undo_append(table)
