"""What can be done by hand to the rows of a cache: the part of a sequence's cache that edits ask."""

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
        """Why no row can be edited here; empty where rows can."""
        return "keeps nothing between steps, so there are no rows to edit" if self.spec.recomputes else ""

    @torch.inference_mode()
    def write_rows(self, writes: Sequence[RowWrite]) -> None:
        """Put numbers in the place of rows held, written as the layers write theirs. What can fail comes first."""
        self.prepare_write(writes)
        for write in writes:
            self.layers[write.layer].write_rows(write.part, write.heads, write.slots, write.numbers)
        self.note_edit(min(write.span.start for write in writes))

    def prepare_write(self, writes: Sequence[RowWrite]) -> None:
        """Before rows are written: what can fail."""

    def drop_rows(self, spans: Mapping[int, torch.Tensor]) -> None:
        """Drop rows, by layer the positions `[H_kv, E]`; an `InputError` says why that cannot be done here."""
        raise InputError(
            "This cache keeps every row of every layer, so none can be dropped: mask the rows, or take a cache with a "
            "rule for dropping rows, or one in pages."
        )

    def check_are_decoded(self, layers: Iterable[int]) -> None:
        """Refuse to drop rows of cross layers."""
        if any(isinstance(self.live.layers[index], CrossLayer) for index in layers):
            raise InputError(
                "Rows of what the encoder read are written once and in one run, so none can be dropped: mask the rows."
            )

    def check_pinned(self, pinned: RowMarks) -> None:
        """An `InputError` says why these rows cannot be kept from being dropped."""
        raise InputError("This cache keeps every row, so none needs a pin: take one with a rule for dropping rows.")

    def note_edit(self, first_position: int) -> None:
        """From here on states with fewer tokens than now, and more than those before that position, are not known."""
        self.by_hand = self.by_hand.edited(self.num_tokens, first_position)
        self._deltas.clear()

    def mark_rows(self, first_position: int, *, hidden: RowMarks | None = None, pinned: RowMarks | None = None) -> None:
        """Hide these rows from attention, or keep these from being dropped, from now on."""
        before = self.by_hand
        self.by_hand = replace(
            before,
            hidden=before.hidden if hidden is None else hidden,
            pinned=before.pinned if pinned is None else pinned,
        )
        self.note_edit(first_position)

    @property
    def is_fed_alone(self) -> bool:
        """Whether no other sequence may be in its forward: what is hidden from attention differs."""
        return bool(self.by_hand.hidden)

    def held_positions(self, layer_index: int) -> torch.Tensor:
        """Positions `[H_kv, S]` of the rows that a layer held before the forward in progress, if any."""
        layer, scattered = self.layers[layer_index], self.positions(layer_index)
        if scattered is not None:
            return scattered[:, : int((scattered[0] < self.num_tokens).sum())]
        return torch.arange(layer.first_position(), self.num_tokens)[None]

    def hidden_rows(self) -> dict[int, torch.Tensor] | None:
        """Which of the rows held `[H_kv, S]` attention must not see, by layer; None where it sees all."""
        hidden = self.by_hand.hidden
        if not hidden:
            return None
        found: dict[int, torch.Tensor] = {}
        for layer, mask in hidden.layers.items():
            places = self.held_positions(layer)
            marked = hidden.at(layer, places.expand(mask.shape[0], -1))
            if marked is not None:
                found[layer] = marked
        return found
