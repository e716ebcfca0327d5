"""The part of a sequence's cache that edits by hand call: write, hide, pin and drop rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from engine.cache.by_hand import RowMarks, RowWrite
from engine.cache.layers.cross import CrossLayer
from engine.cache.readable import ReadableRows
from engine.errors import InputError


class EditableRows(ReadableRows):
    """Rows that are written, hidden, pinned and dropped by hand."""

    def why_no_edit(self) -> str:
        """The reason why no row can be edited in this cache; empty where rows can be edited."""
        return "keeps nothing between steps, so there are no rows to edit" if self.spec.recomputes else ""

    @torch.inference_mode()
    def write_rows(self, writes: Sequence[RowWrite]) -> None:
        """Overwrite held rows with other numbers, encoded as each layer encodes its own rows. All that can fail runs
        before anything is written."""
        self.prepare_write(writes)
        for write in writes:
            self.layers[write.layer].write_rows(write.part, write.heads, write.slots, write.numbers)
        self.note_edit(min(write.span.start for write in writes))

    def prepare_write(self, writes: Sequence[RowWrite]) -> None:
        """Do what can fail before rows are overwritten; here there is nothing."""

    def drop_rows(self, spans: Mapping[int, torch.Tensor]) -> None:
        """Drop the rows at `positions` `[H_kv, E]` of each layer; raises `InputError` where this cache cannot drop
        rows."""
        raise InputError(
            "This cache keeps every row of every layer, so none can be dropped: mask the rows, or take a cache with a "
            "rule for dropping rows, or one in pages."
        )

    def check_are_decoded(self, layers: Iterable[int]) -> None:
        """Raise `InputError` if any of these layers is a cross layer, whose rows cannot be dropped."""
        if any(isinstance(self.live.layers[index], CrossLayer) for index in layers):
            raise InputError(
                "Rows of what the encoder read are written once and in one run, so none can be dropped: mask the rows."
            )

    def check_pinned(self, pinned: RowMarks) -> None:
        """Raise `InputError` if these rows cannot be pinned, that is, kept from eviction."""
        raise InputError("This cache keeps every row, so none needs a pin: take one with a rule for dropping rows.")

    def note_edit(self, first_position: int) -> None:
        """Note an edit that changed rows from `first_position` on: states with more tokens than that and fewer than now
        can no longer be restored."""
        self.by_hand = self.by_hand.edited(self.num_tokens, first_position)
        self._deltas.clear()

    def mark_rows(self, first_position: int, *, hidden: RowMarks | None = None, pinned: RowMarks | None = None) -> None:
        """Set which rows are hidden from attention and which are pinned from now on; None leaves the marks as they
        are."""
        before = self.by_hand
        self.by_hand = replace(
            before,
            hidden=before.hidden if hidden is None else hidden,
            pinned=before.pinned if pinned is None else pinned,
        )
        self.note_edit(first_position)

    @property
    def needs_own_forward(self) -> bool:
        """Whether this sequence needs a forward of its own, because rows are hidden from its attention."""
        return bool(self.by_hand.hidden)

    def held_positions(self, layer_index: int) -> torch.Tensor:
        """Positions `[H_kv, S]` of the rows that a layer held before the current forward, if one is running; `[1, S]`
        if all heads hold the same."""
        layer, scattered = self.layers[layer_index], self.positions(layer_index)
        if scattered is not None:
            return scattered[:, : int((scattered[0] < self.num_tokens).sum())]
        return torch.arange(layer.first_position(), self.num_tokens)[None]

    def hidden_rows(self) -> dict[int, torch.Tensor]:
        """For each layer, which of its held rows `[H_kv, S]` are hidden from attention; empty where no row is."""
        hidden = self.by_hand.hidden
        found: dict[int, torch.Tensor] = {}
        for layer, mask in hidden.layers.items():
            places = self.held_positions(layer)
            marked = hidden.at(layer, places.expand(mask.shape[0], -1))
            if marked is not None:
                found[layer] = marked
        return found
