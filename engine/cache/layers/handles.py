"""The layers that transformers makes, each with a handle that answers for it: nobody else looks inside them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, StaticSlidingWindowLayer

from engine.cache.contract import HeldRows, Pair
from engine.cache.layers.layer_handle import LayerHandle
from engine.cache.layers.of_transformers import LayerOfTransformers
from engine.cache.layers.own import OwnLayer
from engine.cache.layers.quantized import QuantizedRows
from engine.cache.row_delta import RowDelta, slid
from engine.cache.stored import StoredLayer, stored_rows


class CountedStaticLayer(StaticLayer):  # type: ignore[misc]
    """transformers keeps the length in a tensor on the device: to read it there is to wait for all that was begun.
    `num_rows` is the same number."""

    num_rows = 0
    is_ahead = False  # of the number on the device

    def count_row(self, count: int = 1) -> None:
        """A row was written behind those that are there; the number on the device follows when it is needed."""
        self.num_rows += count
        self.is_ahead = True

    def settle(self) -> None:
        """The number on the device is this one."""
        if self.is_ahead:
            self.cumulative_length.fill_(self.num_rows)
            self.is_ahead = False

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Pair:
        if torch.compiler.is_compiling():  # a number of the host would be compiled in, and another one at every step
            found: Pair = super().update(key_states, value_states, *args, **kwargs)
            return found
        self.settle()
        pair: Pair = super().update(key_states, value_states, *args, **kwargs)
        self.num_rows += key_states.shape[-2]
        return pair

    def get_seq_length(self) -> int:
        return self.cumulative_length if torch.compiler.is_compiling() else self.num_rows

    def reset(self) -> None:
        super().reset()
        self.num_rows, self.is_ahead = 0, False


def counted(layer: Any) -> Any:
    """A static layer, still empty, as one that counts; any other as it is."""
    return CountedStaticLayer(layer.max_cache_len) if type(layer) is StaticLayer else layer


class RowsOfTransformers(LayerOfTransformers):
    """K and V of every token."""

    keeps_all_rows = takes_rows = True

    def commit(self, written: RowDelta) -> RowDelta:
        return written

    def can_crop(self, num_tokens: int) -> bool:
        return True


class DynamicRows(RowsOfTransformers):
    """Rows grown by concatenation."""

    def rows(self) -> HeldRows | None:
        keys = self.layer.keys
        return None if keys is None or keys.dim() != 4 else HeldRows(keys, self.layer.values, 0)

    def crop(self, num_tokens: int) -> int:
        """Each by itself: after a step that had no room for V, K has rows that V has not, and the layer's own way back
        takes as many from both."""
        layer = self.layer
        layer.keys, layer.values = (
            held if held is None or held.dim() != 4 else held[:, :, :num_tokens] for held in (layer.keys, layer.values)
        )
        return 0


class StaticRows(RowsOfTransformers):
    """Rows in room that was reserved for all of them."""

    def rows(self) -> HeldRows | None:
        if not self.layer.is_initialized:  # room for K may be there, and none for V
            return None
        held = int(self.layer.get_seq_length())
        return HeldRows(self.layer.keys[:, :, :held], self.layer.values[:, :, :held], 0)

    def crop(self, num_tokens: int) -> int:
        if self.layer.is_initialized:
            # zeroed, so that reserved room looks the same as before the rows were written
            self.layer.keys[:, :, num_tokens:].zero_()
            self.layer.values[:, :, num_tokens:].zero_()
            self.layer.cumulative_length.fill_(num_tokens)
        return 0


class CountedStaticRows(StaticRows):
    """The same, where the layer itself counts them."""

    def crop(self, num_tokens: int) -> int:
        super().crop(num_tokens)
        if self.layer.is_initialized:
            self.layer.num_rows, self.layer.is_ahead = num_tokens, False
        return 0

    @property
    def has_row_behind(self) -> bool:
        return bool(self.layer.is_initialized) and self.layer.num_rows < self.layer.max_cache_len

    def hide_row(self) -> None:
        self.layer.count_row(-1)

    def count_row(self) -> None:
        self.layer.count_row()


class WindowRows(RowsOfTransformers):
    """The latest rows, as many as the window has; what has left it is gone. `counter` is what the layer calls the
    number of tokens that it has seen."""

    keeps_all_rows = takes_rows = False
    counter = "cumulative_length"

    @property
    def num_kept(self) -> int:
        """Rows that stay when a step is done."""
        raise NotImplementedError

    @property
    def num_seen(self) -> int:
        return int(getattr(self.layer, self.counter))

    def commit(self, written: RowDelta) -> RowDelta:
        return slid(written, self.num_kept)

    def knows(self, num_tokens: int) -> bool:
        return num_tokens >= self.num_seen or self.num_seen <= self.num_kept

    def can_crop(self, num_tokens: int) -> bool:
        return not self.layer.is_initialized or self.num_seen <= self.num_kept

    def crop(self, num_tokens: int) -> int:
        super().crop(num_tokens)
        if self.layer.is_initialized:
            setattr(self.layer, self.counter, num_tokens)
        return 0

    def restore(self, stored: StoredLayer) -> None:
        super().restore(stored)
        setattr(self.layer, self.counter, stored.num_tokens)


class DynamicWindow(WindowRows, DynamicRows):
    """A window grown by concatenation, and cut."""

    @property
    def num_kept(self) -> int:
        return int(self.layer.sliding_window) - 1

    def rows(self) -> HeldRows | None:
        found = super().rows()
        return None if found is None else replace(found, first=self.num_seen - found.keys.shape[2])


class StaticWindow(WindowRows, StaticRows):
    """A window in room that was reserved for it."""

    counter = "cumulative_length_int"

    @property
    def num_kept(self) -> int:
        return int(self.layer.max_cache_len)

    def rows(self) -> HeldRows | None:
        if not self.layer.is_initialized:  # room for K may be there, and none for V
            return None
        held = min(self.num_seen, self.num_kept)
        return HeldRows(self.layer.keys[:, :, :held], self.layer.values[:, :, :held], self.num_seen - held)


class RowsAndState(LayerOfTransformers):
    """Rows with a recurrent state or an indexer's keys beside them: once it holds something it cannot go back."""

    def __init__(self, rows: LayerOfTransformers) -> None:
        super().__init__(rows.layer)
        self._rows = rows
        self.has_state = True

    def rows(self) -> HeldRows | None:
        return self._rows.rows()

    def stored(self, num_tokens: int) -> StoredLayer | None:
        has_states = hasattr(self.layer, "conv_states")
        return stored_rows(self.rows(), num_tokens, "" if has_states else "an indexer's keys are not written")

    def restore(self, stored: StoredLayer) -> None:
        self._rows.restore(stored)

    def first_position(self) -> int:
        return self._rows.first_position()

    def commit(self, written: RowDelta) -> RowDelta:
        return self._rows.commit(written)

    def knows(self, num_tokens: int) -> bool:
        return self._rows.knows(num_tokens)

    def can_crop(self, num_tokens: int) -> bool:
        return self.layer.keys is None


HANDLES: dict[type, type[LayerOfTransformers]] = {
    DynamicSlidingWindowLayer: DynamicWindow,
    DynamicLayer: DynamicRows,
    StaticSlidingWindowLayer: StaticWindow,
    CountedStaticLayer: CountedStaticRows,
    StaticLayer: StaticRows,
}


def handle_of(layer: Any) -> LayerHandle:
    """Who answers for a layer: itself if it is ours, else the handle of its kind."""
    if isinstance(layer, OwnLayer):
        return layer
    if hasattr(layer, "_dequantize"):
        return QuantizedRows(layer)
    for kind, handle in HANDLES.items():
        if isinstance(layer, kind):
            return handle(layer) if type(layer) is kind else RowsAndState(handle(layer))
    return LayerOfTransformers(layer)


def is_pageable(layer: Any) -> bool:
    """A layer that keeps rows of K and V and nothing else, so that one of ours can take its place."""
    return type(layer) in (DynamicLayer, DynamicSlidingWindowLayer)
