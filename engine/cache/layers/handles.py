"""A handle for each kind of cache layer that transformers makes. Only this folder looks inside such layers."""

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
from engine.cache.row_delta import RowDelta, windowed
from engine.cache.stored import StoredLayer, stored_rows
from engine.spec.codec import Part


class CountedStaticLayer(StaticLayer):  # type: ignore[misc]
    """A static layer that counts its rows on the host too, in `num_rows`. transformers keeps that number in a tensor on
    the device, and reading it there waits for all queued work."""

    num_rows = 0
    is_device_stale = False  # whether `num_rows` has changed and the number on the device has not

    def count_row(self, count: int = 1) -> None:
        """Count `count` rows that were written after the counted ones; the number on the device is updated by
        `write_length`."""
        self.num_rows += count
        self.is_device_stale = True

    def write_length(self) -> None:
        """Write `num_rows` to the device if the number there is out of date."""
        if self.is_device_stale:
            self.cumulative_length.fill_(self.num_rows)
            self.is_device_stale = False

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Pair:
        if torch.compiler.is_compiling():  # a Python number would become a constant of the compiled step
            found: Pair = super().update(key_states, value_states, *args, **kwargs)
            return found
        self.write_length()
        pair: Pair = super().update(key_states, value_states, *args, **kwargs)
        self.num_rows += key_states.shape[-2]
        return pair

    def get_seq_length(self) -> int:
        return self.cumulative_length if torch.compiler.is_compiling() else self.num_rows

    def reset(self) -> None:
        super().reset()
        self.num_rows, self.is_device_stale = 0, False


def counted(layer: Any) -> Any:
    """An empty static layer as a `CountedStaticLayer`; any other layer unchanged."""
    return CountedStaticLayer(layer.max_cache_len) if type(layer) is StaticLayer else layer


class RowsOfTransformers(LayerOfTransformers):
    """The handle of a layer that keeps K and V of every token. Where it keeps a recurrent state or an indexer's keys
    beside them, it cannot go back once it holds any tokens."""

    keeps_all_rows = takes_rows = True

    def commit(self, written: RowDelta) -> RowDelta:
        return written

    def can_crop(self, num_tokens: int) -> bool:
        return not self.has_state or self.layer.keys is None

    def stored(self, num_tokens: int) -> StoredLayer | None:
        is_whole = not self.has_state or hasattr(self.layer, "conv_states")
        return stored_rows(self.rows(), num_tokens, "" if is_whole else "an indexer's keys are not written")


class DynamicRows(RowsOfTransformers):
    """The handle of a layer that grows by concatenation."""

    def rows(self) -> HeldRows | None:
        keys = self.layer.keys
        return None if keys is None or keys.dim() != 4 else HeldRows(keys, self.layer.values, 0)

    def crop(self, num_tokens: int) -> int:
        """Crop K and V separately: after a step that ran out of memory for V, K has rows that V has not, and the
        layer's own `crop` would remove equally many from both."""
        layer = self.layer
        layer.keys, layer.values = (
            held if held is None or held.dim() != 4 else held[:, :, :num_tokens] for held in (layer.keys, layer.values)
        )
        return 0


class StaticRows(RowsOfTransformers):
    """The handle of a layer with preallocated room for all rows."""

    def rows(self) -> HeldRows | None:
        if not self.layer.is_initialized:  # if memory ran out, K may be allocated and V not
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
    """The handle of a `CountedStaticLayer`."""

    def newest(self, part: Part, first_position: int, num_tokens: int | None = None) -> torch.Tensor:
        found: torch.Tensor = getattr(self.layer, part)[0, :, first_position : self.layer.num_rows]
        return found

    def num_final(self, part: Part, num_tokens: int) -> int:
        return min(int(self.layer.num_rows), num_tokens)

    def crop(self, num_tokens: int) -> int:
        super().crop(num_tokens)
        if self.layer.is_initialized:
            self.layer.num_rows, self.layer.is_device_stale = num_tokens, False
        return 0

    @property
    def can_write_ahead(self) -> bool:
        return bool(self.layer.is_initialized) and self.layer.num_rows < self.layer.max_cache_len

    def uncount_row(self) -> None:
        self.layer.count_row(-1)

    def count_row(self) -> None:
        self.layer.count_row()


class WindowRows(RowsOfTransformers):
    """The handle of a sliding-window layer: rows that have left the window are gone. `counter` is the name of the
    layer's attribute that has the number of tokens seen."""

    keeps_all_rows = takes_rows = False
    counter = "cumulative_length"

    @property
    def num_kept(self) -> int:
        """Number of rows that remain after a step."""
        raise NotImplementedError

    @property
    def num_seen(self) -> int:
        return int(getattr(self.layer, self.counter))

    def rows(self) -> HeldRows | None:
        found = super().rows()
        return None if found is None else replace(found, first=self.num_seen - found.keys.shape[2])

    def commit(self, written: RowDelta) -> RowDelta:
        return windowed(written, self.num_kept)

    def knows(self, num_tokens: int) -> bool:
        return num_tokens >= self.num_seen or self.num_seen <= self.num_kept

    def can_crop(self, num_tokens: int) -> bool:
        fits = not self.layer.is_initialized or self.num_seen <= self.num_kept
        return fits and super().can_crop(num_tokens)

    def crop(self, num_tokens: int) -> int:
        super().crop(num_tokens)
        if self.layer.is_initialized:
            setattr(self.layer, self.counter, num_tokens)
        return 0

    def restore(self, stored: StoredLayer) -> None:
        super().restore(stored)
        setattr(self.layer, self.counter, stored.num_tokens)


class DynamicWindow(WindowRows, DynamicRows):
    """The handle of a window that grows by concatenation and is then cut."""

    @property
    def num_kept(self) -> int:
        return int(self.layer.sliding_window) - 1


class StaticWindow(WindowRows, StaticRows):
    """The handle of a window in preallocated room."""

    counter = "cumulative_length_int"

    @property
    def num_kept(self) -> int:
        return int(self.layer.max_cache_len)


HANDLES: dict[type, type[RowsOfTransformers]] = {
    DynamicSlidingWindowLayer: DynamicWindow,
    DynamicLayer: DynamicRows,
    StaticSlidingWindowLayer: StaticWindow,
    CountedStaticLayer: CountedStaticRows,
    StaticLayer: StaticRows,
}


def handle_of(layer: Any) -> LayerHandle:
    """The handle of a layer: the layer itself if it is an `OwnLayer`, else a handle for its kind."""
    if isinstance(layer, OwnLayer):
        return layer
    if hasattr(layer, "_dequantize"):
        return QuantizedRows(layer)
    for kind, handle in HANDLES.items():
        if isinstance(layer, kind):
            made = handle(layer)
            if type(layer) is not kind:
                made.has_state, made.keeps_all_rows, made.takes_rows = True, False, False
            return made
    return LayerOfTransformers(layer)


def is_pageable(layer: Any) -> bool:
    """Whether a layer keeps rows of K and V and nothing else, so that an `OwnLayer` can replace it."""
    return type(layer) in (DynamicLayer, DynamicSlidingWindowLayer)
