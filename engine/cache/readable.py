"""The part of a sequence's cache that is only read: rows now and at earlier steps, what steps changed, and bytes."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from engine.cache.by_hand import UNTOUCHED
from engine.cache.contract import HeldBytes, HeldRows, Pair, StateMatrix
from engine.cache.layers.growing import rows_at_once
from engine.cache.layers.handles import handle_of
from engine.cache.layers.layer_handle import LayerHandle
from engine.cache.row_delta import NO_ROWS, RowDelta, combined_by_layer
from engine.spec.cache import CacheSpec
from engine.spec.codec import Part


class ReadableRows:
    """The rows of a sequence, layer by layer; nothing here changes them. `by_hand` holds the edits made so far."""

    spec: CacheSpec
    live: Any  # what the model is called with
    layers: list[LayerHandle]
    num_tokens: int
    by_hand = UNTOUCHED
    _idle: Any  # in layout `allocated`: a static cache that is reserved and never read; else None
    _deltas: deque[tuple[int, int, list[RowDelta]]]

    @torch.inference_mode()
    def rows(self, layer_index: int) -> HeldRows | None:
        """The rows that a layer holds, as views where they are stored exactly; None where it keeps no K and V (linear,
        shared or empty layers)."""
        return self.layers[layer_index].rows() if layer_index < len(self.layers) else None

    def knows(self, num_tokens: int) -> bool:
        """Whether `rows_at(layer, num_tokens)` are, bit for bit, the rows that the cache held when it had `num_tokens`
        tokens."""
        if num_tokens >= self.num_tokens and not self.spec.recomputes:  # a scratch may have more rows than tokens
            return True
        return self.by_hand.knows(num_tokens) and all(layer.knows(num_tokens) for layer in self.layers)

    def exact_from(self, layer_index: int, num_tokens: int, part: Part) -> int:
        """The position from which on K or V of a layer is exact, when there are `num_tokens` tokens: attention reads
        the rows before it from quantised codes."""
        if layer_index >= len(self.layers):
            return 0
        return self.layers[layer_index].exact_from(num_tokens, part)

    @torch.inference_mode()
    def rows_at(self, layer_index: int, num_tokens: int) -> HeldRows | None:
        """The rows of a layer when the sequence had `num_tokens` tokens; rows of later tokens may follow them."""
        return self.layers[layer_index].rows_at(num_tokens) if layer_index < len(self.layers) else None

    @torch.inference_mode()
    def newest_rows(self, layer_index: int, first_position: int) -> HeldRows | None:
        """The rows from a position on, none of which has been evicted yet; None where the layer has none of them."""
        return self.layers[layer_index].newest_rows(first_position) if layer_index < len(self.layers) else None

    @torch.inference_mode()
    def newest_rows_at(self, layer_index: int, num_tokens: int, first_position: int) -> HeldRows | None:
        """`newest_rows` as they were when the sequence had `num_tokens` tokens, of a layer with `num_final` rows then;
        rows of later tokens may follow them."""
        return self.layers[layer_index].newest_rows_at(num_tokens, first_position)

    def all_newest_rows(self, first_position: int) -> dict[int, Pair]:
        """`newest_rows` of every layer that has any: keys `[H_kv, T, D_k]`, values `[H_kv, T, D_v]`, as views."""
        pairs = rows_at_once(self.layers, first_position)
        if pairs is not None:
            return dict(enumerate(pairs))
        found = ((index, self.newest_rows(index, first_position)) for index in range(len(self.layers)))
        return {index: (rows.keys[0], rows.values[0]) for index, rows in found if rows is not None}

    @torch.inference_mode()
    def states(self, layer_index: int) -> tuple[StateMatrix, ...]:
        """The recurrent state that a layer keeps now, beside rows or instead of them; empty where it has none."""
        return self.layers[layer_index].states() if layer_index < len(self.layers) else ()

    def positions(self, layer_index: int) -> torch.Tensor | None:
        """Positions `[H_kv, S]` of the rows that a layer holds; None where they are consecutive."""
        return self.layers[layer_index].row_positions() if layer_index < len(self.layers) else None

    @property
    def journal_bytes(self) -> int:
        """Bytes kept only in order to go back."""
        return sum(layer.held_bytes().journal for layer in self.layers) if self.spec.is_compressed else 0

    @property
    def prompt_ended_at(self) -> int | None:
        """Number of tokens at which the prompt ended, once codecs or rules that wait for its end have run; None before,
        and where none waits."""
        return None

    @property
    def kept_ratio(self) -> float:
        """Rows held divided by rows seen, over the layers that evict or quantise rows."""
        return 1.0

    def all_bytes(self) -> list[HeldBytes]:
        """For every layer, the bytes of rows that hold tokens (or of state), and of all its storage."""
        return [layer.held_bytes() for layer in self.layers]

    @property
    def stored_bytes(self) -> int:
        """Bytes that hold tokens or recurrent state, over all layers."""
        return sum(layer.held_bytes().stored for layer in self.layers)

    def idle_bytes(self, layer_index: int) -> int:
        """Bytes of one layer that are reserved and never read; only the layout `allocated` has any."""
        return 0 if self._idle is None else handle_of(self._idle.layers[layer_index]).held_bytes().reserved

    @property
    def num_idle_rows_written(self) -> int:
        """Rows of that reserved storage that hold anything but zeros, over all layers. Nothing writes there, so it is
        0."""
        layers = [] if self._idle is None else self._idle.layers
        rows = [t.abs().amax(dim=(0, 1, 3)) for layer in layers for t in (layer.keys, layer.values) if t is not None]
        return sum(int(row.count_nonzero()) for row in rows)

    def changes_since(self, num_tokens: int, until: int | None = None) -> list[RowDelta] | None:
        """What happened to the rows of each layer between `num_tokens` tokens and `until` tokens (default: now). None
        where the deltas of these steps are no longer kept, or something other than a step changed the rows."""
        until = self.num_tokens if until is None else until
        if num_tokens == until:
            return [RowDelta(NO_ROWS)] * len(self.layers)
        found: list[RowDelta] | None = None
        for before, after, deltas in reversed(self._deltas):
            if after > until:
                continue
            if found is None and after < until:
                return None
            found = deltas if found is None else combined_by_layer(deltas, found)
            if before <= num_tokens:
                return found if before == num_tokens else None
        return None

    def num_final(self, layer_index: int, part: Part, num_tokens: int) -> int:
        """How many of the rows that a layer held at `num_tokens` tokens, for which `knows` must hold, no later step has
        overwritten or will, from position 0 on; 0 where any of them was dropped since."""
        is_kept = layer_index < len(self.layers) and not self.spec.recomputes
        return self.layers[layer_index].num_final(part, num_tokens) if is_kept else 0
