"""What can be read of the cache of a sequence: rows, now and as they were, what steps did to them, and bytes."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from engine.cache.by_hand import UNTOUCHED
from engine.cache.contract import HeldBytes, HeldRows, Pair, StateMatrix
from engine.cache.layers.growing import rows_at_once
from engine.cache.layers.handles import handle_of
from engine.cache.layers.layer_handle import LayerHandle
from engine.cache.row_delta import NO_ROWS, RowDelta, all_then
from engine.spec.cache import CacheSpec
from engine.spec.codec import Part


class ReadableRows:
    """Rows of a sequence, layer by layer; nothing here changes them. `by_hand` is what edits did so far."""

    spec: CacheSpec
    live: Any  # what the model is called with
    layers: list[LayerHandle]
    num_tokens: int
    by_hand = UNTOUCHED
    _idle: Any  # a cache that is reserved and never read, in the layout that has one
    _deltas: deque[tuple[int, int, list[RowDelta]]]

    @torch.inference_mode()
    def rows(self, layer_index: int) -> HeldRows | None:
        """The rows a layer holds, as views where they are exact; None where it keeps no K and V (linear, shared or
        empty layers)."""
        return self.layers[layer_index].rows() if layer_index < len(self.layers) else None

    def knows(self, num_tokens: int) -> bool:
        """Whether `rows_at` that many tokens are those that stood there then, bit for bit."""
        if num_tokens >= self.num_tokens and not self.spec.recomputes:  # a scratch may have more rows than tokens
            return True
        return self.by_hand.knows(num_tokens) and all(layer.knows(num_tokens) for layer in self.layers)

    def decodes(self, num_tokens: int) -> bool:
        """Whether attention read any of the rows of so many tokens from their codes, in any layer."""
        return any(layer.decodes(num_tokens) for layer in self.layers)

    @torch.inference_mode()
    def rows_at(self, layer_index: int, num_tokens: int) -> HeldRows | None:
        """The rows of a layer when the sequence had `num_tokens` tokens; later ones may stand behind them."""
        return self.layers[layer_index].rows_at(num_tokens) if layer_index < len(self.layers) else None

    @torch.inference_mode()
    def newest_rows(self, layer_index: int, first_position: int) -> HeldRows | None:
        """The rows from a position on, none of which was dropped yet; None where the layer has none of them."""
        return self.layers[layer_index].newest_rows(first_position) if layer_index < len(self.layers) else None

    def all_newest_rows(self, first_position: int) -> dict[int, Pair]:
        """`newest_rows` of every layer that has any: keys `[H_kv, T, D_k]`, values `[H_kv, T, D_v]`, as views."""
        pairs = rows_at_once(self.layers, first_position)
        if pairs is not None:
            return dict(enumerate(pairs))
        found = ((index, self.newest_rows(index, first_position)) for index in range(len(self.layers)))
        return {index: (rows.keys[0], rows.values[0]) for index, rows in found if rows is not None}

    @torch.inference_mode()
    def states(self, layer_index: int) -> tuple[StateMatrix, ...]:
        """The state that a layer keeps beside rows, as it is now, or instead of any."""
        return self.layers[layer_index].states() if layer_index < len(self.layers) else ()

    def positions(self, layer_index: int) -> torch.Tensor | None:
        """Positions `[H_kv, S]` of the rows a layer holds, None where they are one run."""
        return self.layers[layer_index].row_positions() if layer_index < len(self.layers) else None

    @property
    def journal_bytes(self) -> int:
        """Bytes kept only for going back."""
        return sum(layer.held_bytes().journal for layer in self.layers) if self.spec.is_compressed else 0

    @property
    def prompt_ended_at(self) -> int | None:
        """Tokens of the prompt, once what waits for its end was coded or dropped."""
        return None

    @property
    def kept_ratio(self) -> float:
        """The part of the rows seen that is held, over the layers that drop rows or code them."""
        return 1.0

    def all_bytes(self) -> list[HeldBytes]:
        """Of every layer the bytes in rows that hold tokens (or in state), and in all its storages."""
        return [layer.held_bytes() for layer in self.layers]

    @property
    def stored_bytes(self) -> int:
        """Bytes that hold tokens, or state."""
        return sum(layer.held_bytes().stored for layer in self.layers)

    def idle_bytes(self, layer_index: int) -> int:
        """Room of one layer that is reserved and never read: the layout `allocated` has it, no other does."""
        return 0 if self._idle is None else handle_of(self._idle.layers[layer_index]).held_bytes().reserved

    @property
    def num_idle_rows_written(self) -> int:
        """Rows of that room that hold anything but zeros, over all layers: none, since nothing writes there."""
        layers = [] if self._idle is None else self._idle.layers
        rows = [t.abs().amax(dim=(0, 1, 3)) for layer in layers for t in (layer.keys, layer.values) if t is not None]
        return sum(int(row.count_nonzero()) for row in rows)

    def changes_since(self, num_tokens: int, until: int | None = None) -> list[RowDelta] | None:
        """What happened to the rows of each layer since the sequence had so many tokens, and until it had some more;
        None where that is not known, or something else was done than stepping."""
        until = self.num_tokens if until is None else until
        if num_tokens == until:
            return [RowDelta(NO_ROWS)] * len(self.layers)
        found: list[RowDelta] | None = None
        for before, after, deltas in reversed(self._deltas):
            if after > until:
                continue
            if found is None and after < until:
                return None
            found = deltas if found is None else all_then(deltas, found)
            if before <= num_tokens:
                return found if before == num_tokens else None
        return None

    def num_final(self, layer_index: int, part: Part) -> int:
        """How many rows of a layer, from the first held on, no later step will write anew."""
        return 0 if self.spec.recomputes else self.layers[layer_index].num_final(part)
