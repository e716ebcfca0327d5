"""The layers that transformers makes, each with a handle that answers for it: nobody else looks inside them."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import (
    BaseQuantizedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from engine.cache.by_hand import put
from engine.cache.contract import (
    NO_ROWS,
    HeldBytes,
    HeldRows,
    LayerHandle,
    RowDelta,
    StateMatrix,
    StoredLayer,
    StoredPart,
    rows_from,
    slid,
    stored_rows,
)
from engine.cache.layers.counted import CountedStaticLayer
from engine.cache.layers.own import OwnLayer
from engine.cache.layers.state import state_matrices
from engine.cache.layers.storage import distinct_storages, storage_bytes, tensors_of
from engine.spec.codec import Part


class LayerOfTransformers:
    """The handle of a layer that is none of ours: by itself, of one without K and V."""

    keeps_all_rows = False
    takes_rows = False

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.has_state = hasattr(layer, "conv_states")

    def rows(self) -> HeldRows | None:
        return None

    def rows_at(self, num_tokens: int) -> HeldRows | None:
        return self.rows()

    def newest_rows(self, first_position: int) -> HeldRows | None:
        return rows_from(self.rows(), first_position)

    def row_positions(self) -> torch.Tensor | None:
        return None

    def held_bytes(self) -> HeldBytes:
        """Where it keeps no rows, all of its storage is state."""
        reserved = sum(storage_bytes(tensor) for tensor in distinct_storages(self.layer))
        rows = self.rows()
        if rows is None:
            return HeldBytes(reserved, reserved)
        in_rows = {id(self.layer.keys), id(self.layer.values)}
        beside = sum(int(t.nbytes) for t in tensors_of(self.layer) if id(t) not in in_rows)
        return HeldBytes(min(int(rows.keys.nbytes + rows.values.nbytes) + beside, reserved), reserved)

    def states(self) -> tuple[StateMatrix, ...]:
        return state_matrices(self.layer)

    def reserve(self, num_new: int) -> None:
        """transformers' layers grow when rows come."""

    def commit(self, written: RowDelta) -> RowDelta:
        return RowDelta(NO_ROWS)

    def num_final(self, part: Part) -> int:
        rows = self.rows()
        return 0 if rows is None else rows.keys.shape[2]

    def knows(self, num_tokens: int) -> bool:
        return True  # it has no rows to lose

    def can_crop(self, num_tokens: int) -> bool:
        return not self.has_state

    def crop(self, num_tokens: int) -> int:
        return 0

    def stored(self, num_tokens: int) -> StoredLayer | None:
        return stored_rows(self.rows(), num_tokens)

    def first_position(self) -> int:
        rows = self.rows()
        return 0 if rows is None else rows.first

    def write_rows(self, part: Part, heads: torch.Tensor, slots: torch.Tensor, numbers: torch.Tensor) -> None:
        """What it is asked for are its own tensors, in which it is written."""
        rows = self.rows()
        assert rows is not None, "a layer without rows is not edited"
        put((rows.keys if part == "keys" else rows.values)[0], heads, slots, numbers)

    def restore(self, stored: StoredLayer) -> None:
        self.layer.update(stored.keys.tensors["rows"], stored.values.tensors["rows"])


class DynamicRows(LayerOfTransformers):
    """Rows grown by concatenation."""

    keeps_all_rows = takes_rows = True

    @property
    def is_empty(self) -> bool:
        return self.layer.keys is None or self.layer.keys.dim() != 4

    def rows(self) -> HeldRows | None:
        return None if self.is_empty else HeldRows(self.layer.keys, self.layer.values, 0)

    def commit(self, written: RowDelta) -> RowDelta:
        return written

    def can_crop(self, num_tokens: int) -> bool:
        return True

    def crop(self, num_tokens: int) -> int:
        if self.layer.keys is not None:
            self.layer.crop(num_tokens - self.layer.get_seq_length())
        return 0


class DynamicWindow(DynamicRows):
    """The latest rows, as many as the window has; what has left it is gone."""

    keeps_all_rows = takes_rows = False

    def commit(self, written: RowDelta) -> RowDelta:
        return slid(written, self.layer.sliding_window - 1)

    def rows(self) -> HeldRows | None:
        keys = self.layer.keys
        return (
            None if self.is_empty else HeldRows(keys, self.layer.values, self.layer.cumulative_length - keys.shape[2])
        )

    def knows(self, num_tokens: int) -> bool:
        return bool(num_tokens >= self.layer.cumulative_length or self._is_whole)

    def can_crop(self, num_tokens: int) -> bool:
        return self.layer.keys is None or self._is_whole

    @property
    def _is_whole(self) -> bool:
        return bool(self.layer.cumulative_length < self.layer.sliding_window)

    def restore(self, stored: StoredLayer) -> None:
        super().restore(stored)
        self.layer.cumulative_length = stored.num_tokens


class StaticRows(LayerOfTransformers):
    """Rows in room that was reserved for all of them."""

    keeps_all_rows = takes_rows = True

    def rows(self) -> HeldRows | None:
        if self.layer.keys is None:
            return None
        held = int(self.layer.get_seq_length())
        return HeldRows(self.layer.keys[:, :, :held], self.layer.values[:, :, :held], 0)

    def commit(self, written: RowDelta) -> RowDelta:
        return written

    def can_crop(self, num_tokens: int) -> bool:
        return True

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


class StaticWindow(StaticRows):
    """The latest rows in room for one window."""

    keeps_all_rows = takes_rows = False

    def rows(self) -> HeldRows | None:
        if self.layer.keys is None:
            return None
        seen = self.layer.cumulative_length_int
        held = min(seen, self.layer.max_cache_len)
        return HeldRows(self.layer.keys[:, :, :held], self.layer.values[:, :, :held], seen - held)

    def commit(self, written: RowDelta) -> RowDelta:
        return slid(written, self.layer.max_cache_len)

    def knows(self, num_tokens: int) -> bool:
        return bool(num_tokens >= self.layer.cumulative_length_int or self._is_whole)

    def can_crop(self, num_tokens: int) -> bool:
        return self.layer.keys is None or self._is_whole

    def crop(self, num_tokens: int) -> int:
        super().crop(num_tokens)
        if self.layer.is_initialized:
            self.layer.cumulative_length_int = num_tokens
        return 0

    @property
    def _is_whole(self) -> bool:
        return bool(self.layer.cumulative_length_int <= self.layer.max_cache_len)

    def restore(self, stored: StoredLayer) -> None:
        super().restore(stored)
        self.layer.cumulative_length_int = stored.num_tokens


class QuantizedRows(LayerOfTransformers):
    """Rows as transformers' quantisers write them, the latest still exact."""

    takes_rows = True

    def rows(self) -> HeldRows | None:
        """What attention would be handed."""
        layer = self.layer
        if layer._quantized_keys is None:
            return None
        made = []
        for coded, residual in ((layer._quantized_keys, layer.keys), (layer._quantized_values, layer.values)):
            rows = layer._dequantize(coded)
            made.append(torch.cat([rows, residual], 2) if residual is not None and residual.dim() == 4 else rows)
        return HeldRows(made[0], made[1], 0)

    def commit(self, written: RowDelta) -> RowDelta:
        """All of it may have been quantised anew."""
        before = range(written.written.start)
        return RowDelta(written.written, before, before)

    def num_final(self, part: Part) -> int:
        return 0

    def knows(self, num_tokens: int) -> bool:
        return bool(num_tokens >= self.layer.get_seq_length())

    def can_crop(self, num_tokens: int) -> bool:
        return self.layer.keys is None

    def stored(self, num_tokens: int) -> StoredLayer | None:
        """The codes of the fp8 backend; what those of the others stand for, which are objects of their packages."""
        coded = self.layer._quantized_keys, self.layer._quantized_values
        if not all(isinstance(part, tuple) for part in coded):
            return stored_rows(self.rows(), num_tokens, "its quantiser keeps its codes to itself")
        count = int(coded[0][0].shape[2])
        tensors = [{"codes": codes.view(torch.uint8), "scale": scale.view(1)} for codes, scale in coded]
        keys, values = (StoredPart(each, "transformers-fp8", count) for each in tensors)
        return StoredLayer(keys, values, num_tokens, count, self.layer.dtype)

    def first_position(self) -> int:
        return 0

    def write_rows(self, part: Part, heads: torch.Tensor, slots: torch.Tensor, numbers: torch.Tensor) -> None:
        """With the frozen scale of the fp8 backend the rows alone are coded again; the others quantise all they have
        coded anew, as they do themselves when their residual is full."""
        name, residual = (f"_quantized_{part}", getattr(self.layer, part))
        coded = getattr(self.layer, name)
        rows = self.layer._dequantize(coded)
        num_coded = rows.shape[2]
        if isinstance(coded, tuple):
            made = numbers.new_zeros(1, rows.shape[1], *numbers.shape[1:])
            made[0, heads] = numbers
            codes, scale = coded
            new, _ = self.layer._quantize(made, scale=scale)
            codes = codes.clone()
            put(codes.view(torch.uint8)[0], heads, slots, new.view(torch.uint8)[0, heads])
            setattr(self.layer, name, (codes, scale))
            return
        if residual is not None and residual.dim() == 4:
            rows = torch.cat([rows, residual], 2)
        put(rows[0], heads, slots, numbers)
        axis = self.layer.axis_key if part == "keys" else self.layer.axis_value
        setattr(self.layer, name, self.layer._quantize(rows[:, :, :num_coded].contiguous(), axis=axis))
        if num_coded < rows.shape[2]:
            setattr(self.layer, part, rows[:, :, num_coded:].contiguous())

    def restore(self, stored: StoredLayer) -> None:
        layer, parts = self.layer, [part.tensors for part in (stored.keys, stored.values)]
        layer.lazy_initialization(*(part["codes"][:, :, :1].to(stored.dtype) for part in parts))
        layer._quantized_keys, layer._quantized_values = (
            (part["codes"].view(layer.fp8_dtype), part["scale"].view(())) for part in parts
        )
        layer.cumulative_length = stored.num_tokens


class RowsAndState(LayerOfTransformers):
    """Rows with a recurrent state or an indexer's keys beside them: once it holds something it cannot go back."""

    def __init__(self, rows: LayerOfTransformers) -> None:
        super().__init__(rows.layer)
        self._rows = rows
        self.has_state = True

    def rows(self) -> HeldRows | None:
        return self._rows.rows()

    def stored(self, num_tokens: int) -> StoredLayer | None:
        return stored_rows(self.rows(), num_tokens, "a recurrent state, or an indexer's keys, is not written")

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
    if isinstance(layer, BaseQuantizedLayer):
        return QuantizedRows(layer)
    for kind, handle in HANDLES.items():
        if isinstance(layer, kind):
            return handle(layer) if type(layer) is kind else RowsAndState(handle(layer))
    return LayerOfTransformers(layer)


def is_pageable(layer: Any) -> bool:
    """A layer that keeps rows of K and V and nothing else, so that one of ours can take its place."""
    return type(layer) in (DynamicLayer, DynamicSlidingWindowLayer)
