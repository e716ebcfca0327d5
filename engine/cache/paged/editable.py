"""Edits by hand of a sequence in pages, some of which other sequences may share."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from collections.abc import Sequence as Listing
from typing import Any

import torch

from engine.cache.by_hand import RowMarks, RowWrite
from engine.cache.paged.retention import PageKeeper
from engine.cache.paged.store import PageStore
from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError


class EditablePages(SequenceCache):
    """The part of a paged cache that edits by hand call."""

    store: PageStore
    keeper: PageKeeper | None
    _paged_layers: list[list[int]]
    # number of tokens and copies of the layers that are not paged, kept while a step may fail
    _states: tuple[int, dict[int, Any]] | None = None

    def prepare_write(self, writes: Listing[RowWrite]) -> None:
        """Make the pages that will be written this sequence's own: shared ones are copied, and the prefix cache forgets
        the pages from the first of them on."""
        touched: dict[int, set[int]] = {}
        size = self.store.page_size
        for write in writes:
            start, stop = map(self.num_decoded, (write.span.start, write.span.stop))
            pages = range(start // size, -(-stop // size))
            for number, layers in enumerate(self._paged_layers):
                if write.layer in layers:
                    touched.setdefault(number, set()).update(pages)
        for number, mine in touched.items():
            group, table = self.store.groups[number], self.tables[number]
            for copied in group.pool.make_writable(table, sorted(mine)):
                self.store.copy_page(group, copied)

    def check_pinned(self, pinned: RowMarks) -> None:
        if self.keeper is None:
            super().check_pinned(pinned)
        else:
            self.check_are_decoded(pinned.layers)
            self.keeper.check_pinned(self.tables[0], pinned.behind(self.num_source))

    def drop_rows(self, spans: Mapping[int, torch.Tensor]) -> None:
        """Drop whole pages, in all layers at once; raises `InputError` for anything else."""
        self.check_are_decoded(spans)
        group, table = self.store.groups[0], self.tables[0]
        size, heads = self.store.page_size, {layer.index: layer.num_kv_heads for layer in group.layers}
        source, positions = self.num_source, next(iter(spans.values()))[0]
        first, stop = int(positions[0]) - source, int(positions[-1]) + 1 - source
        has_all = spans.keys() == heads.keys() and all(len(spans[index]) == heads[index] for index in heads)
        if not has_all or first % size or stop % size:
            raise InputError(
                f"A page holds {size} rows of all layers and heads, so whole pages are dropped: name every layer and "
                f"head and positions from {source + first // size * size} to {source - (-stop // size) * size}, or "
                "mask the rows."
            )
        numbers = range(first // size, stop // size)
        if self.keeper is not None:
            self.keeper.drop_by_hand(table, tuple(numbers), self.store.rows_of)
        group.pool.drop(table, numbers)
        self.note_edit(source + first)

    @property
    def needs_own_forward(self) -> bool:
        return super().needs_own_forward or any(table.num_dropped_pages for table in self.tables)

    # ---- recurrent states beside edited rows: recomputing the tokens would not restore them ------------------------

    @property
    def _unpaged(self) -> list[int]:
        paged = {index for layers in self._paged_layers for index in layers}
        return [index for index in range(len(self.live.layers)) if index not in paged]

    @torch.inference_mode()
    def _keep_states(self) -> None:
        """Before a step, copy the layers with recurrent states if rows were edited by hand: recomputing the tokens
        would then not restore the states."""
        if self.by_hand and any(layer.has_state for layer in self.layers):
            self._states = self.num_tokens, {i: copy.deepcopy(self.live.layers[i]) for i in self._unpaged}

    def _restore_kept_states(self) -> None:
        assert self._states is not None
        self._put(self._states[1])
        self._states = None

    def _put(self, layers: Mapping[int, Any]) -> None:
        """Replace the layers with these indices."""
        self.live.layers = [layers.get(index, layer) for index, layer in enumerate(self.live.layers)]
        self._set_live(self.live)

    def release_undo(self) -> None:
        super().release_undo()
        self._states = None
