"""A handle for each kind of cache layer that transformers makes. Only this folder looks inside such layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from transformers import EncoderDecoderCache
from transformers.cache_utils import (
    Cache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from engine.cache.by_hand import write_slots
from engine.cache.contract import (
    NO_ROWS,
    HeldBytes,
    HeldRows,
    Pair,
    RowDelta,
    StateMatrix,
    StoredLayer,
    StoredPart,
    matrices_of,
    stored_rows,
    windowed,
)
from engine.cache.layers.layer import LayerHandle, OwnLayer
from engine.errors import InputError
from engine.spec.codec import Part


class LayerOfTransformers(LayerHandle):
    """The handle of a layer that transformers makes; used directly for layers without K and V."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.has_state = hasattr(layer, "conv_states")

    def held_bytes(self) -> HeldBytes:
        """All storage of the layer. Without rows all of it is state."""
        reserved = sum(int(tensor.untyped_storage().nbytes()) for tensor in distinct_storages(self.layer))
        rows = self.rows()
        if rows is None:
            return HeldBytes(reserved, reserved)
        in_rows = {id(self.layer.keys), id(self.layer.values)}
        beside = sum(int(t.nbytes) for t in tensors_of(self.layer) if id(t) not in in_rows)
        return HeldBytes(min(int(rows.keys.nbytes + rows.values.nbytes) + beside, reserved), reserved)

    def states(self) -> tuple[StateMatrix, ...]:
        """The state of the layer's first sequence, as matrices."""
        return tuple(found for kind, _, tensor in states_of(self.layer) for found in matrices_of(kind, tensor))

    def commit(self, written: RowDelta) -> RowDelta:
        return RowDelta(NO_ROWS)

    def num_final(self, part: Part, num_tokens: int) -> int:
        rows = self.rows()
        return 0 if rows is None or rows.first else min(rows.keys.shape[2], num_tokens)

    def stored_states(self) -> dict[str, torch.Tensor]:
        return {f"{kind}.{number}": tensor.clone() for kind, number, tensor in states_of(self.layer)}

    def restore_states(self, states: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in states.items():
            kind, number = name.rsplit(".", 1)
            if kind == "convolution":
                self.layer.lazy_initialization(conv_states=tensor, state_idx=int(number))
                self.layer.conv_states[int(number)].copy_(tensor)
                self.layer.has_previous_state[int(number)] = True
            else:
                self.layer.lazy_initialization(recurrent_states=tensor, state_idx=int(number))
                self.layer.recurrent_states[int(number)].copy_(tensor)

    def first_position(self) -> int:
        rows = self.rows()
        return 0 if rows is None else rows.first

    def restore(self, stored: StoredLayer) -> None:
        self.layer.update(stored.keys.tensors["rows"], stored.values.tensors["rows"])


def tensors_of(layer: Any) -> Iterator[torch.Tensor]:
    """Every tensor that a layer object holds, whatever its attributes are named."""
    for value in vars(layer).values():
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,):
            if isinstance(item, torch.Tensor) and item.dim() > 0:
                yield item


def distinct_storages(layer: Any) -> list[torch.Tensor]:
    """One tensor per storage: some layers alias values to keys, and a sliced view keeps its whole storage alive."""
    return list({t.untyped_storage().data_ptr(): t for t in tensors_of(layer)}.values())


# the state of recurrent layers: the convolution's last inputs and the recurrence's state
KINDS = (("conv_states", "convolution"), ("recurrent_states", "recurrence"))


def states_of(layer: Any) -> Iterator[tuple[str, int, torch.Tensor]]:
    """The state tensors `[B, …]` of a layer as (kind, number, tensor); none where it has no state or has seen no
    token."""
    for attribute, kind in KINDS:
        for number, tensor in getattr(layer, attribute, {}).items():
            if isinstance(tensor, torch.Tensor) and tensor.dim() > 1:
                yield kind, number, tensor


# ---- layers that keep every row -------------------------------------------------------------------------------------


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


def as_counted(layer: Any) -> Any:
    """An empty static layer as a `CountedStaticLayer`; any other layer unchanged."""
    return CountedStaticLayer(layer.max_cache_len) if type(layer) is StaticLayer else layer


class CountedStaticRows(StaticRows):
    """The handle of a `CountedStaticLayer`."""

    _room: tuple[torch.Tensor, int, int] | None = None  # K, and the bytes reserved and beside the rows while it is K

    def held_bytes(self) -> HeldBytes:
        """The storage is looked for once: it stays where it is, and these are counted after every step."""
        layer = self.layer
        if not layer.is_initialized:
            return super().held_bytes()
        if self._room is None or self._room[0] is not layer.keys:
            whole, rows = super().held_bytes(), layer.num_rows * self._row_bytes
            self._room = layer.keys, whole.reserved, whole.stored - rows
        _, reserved, beside = self._room
        return HeldBytes(min(layer.num_rows * self._row_bytes + beside, reserved), reserved)

    @property
    def _row_bytes(self) -> int:
        return int(self.layer.keys.nbytes + self.layer.values.nbytes) // int(self.layer.keys.shape[2])

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


# ---- sliding windows ------------------------------------------------------------------------------------------------


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


# ---- quantised layers, which keep their latest rows exact -----------------------------------------------------------


class QuantizedRows(LayerOfTransformers):
    """The handle of a layer of transformers' QuantizedCache; its latest rows (the residual) are exact."""

    takes_rows = True

    def rows(self) -> HeldRows | None:
        """The rows as attention would read them: dequantised, and then the residual."""
        layer = self.layer
        if getattr(layer, "_quantized_keys", None) is None:  # some releases create the attribute with the first rows
            return None
        made = []
        for coded, residual in ((layer._quantized_keys, layer.keys), (layer._quantized_values, layer.values)):
            rows = layer._dequantize(coded)
            made.append(torch.cat([rows, residual], 2) if residual is not None and residual.dim() == 4 else rows)
        return HeldRows(made[0], made[1], 0)

    def commit(self, written: RowDelta) -> RowDelta:
        """Count all older rows as rewritten: the quantiser may have quantised them again."""
        before = range(written.written.start)
        return RowDelta(written.written, before, before)

    def num_final(self, part: Part, num_tokens: int) -> int:
        return 0

    def exact_from(self, num_tokens: int, part: Part) -> int:
        residual = self.layer.keys if part == "keys" else self.layer.values
        num_exact = int(residual.shape[2]) if residual is not None and residual.dim() == 4 else 0
        return max(0, num_tokens - num_exact)

    def knows(self, num_tokens: int) -> bool:
        return bool(num_tokens >= self.layer.get_seq_length())

    def can_crop(self, num_tokens: int) -> bool:
        return self.layer.keys is None

    def stored(self, num_tokens: int) -> StoredLayer | None:
        """The codes of the fp8 backend; for the other backends, whose codes are objects of their packages, the
        dequantised rows."""
        coded = self.layer._quantized_keys, self.layer._quantized_values
        if not all(isinstance(part, tuple) for part in coded):
            return stored_rows(self.rows(), num_tokens, "its quantiser keeps its codes to itself")
        count = int(coded[0][0].shape[2])
        tensors = [{"codes": codes.view(torch.uint8), "scale": scale.view(1)} for codes, scale in coded]
        keys, values = (StoredPart(each, "transformers-fp8", count) for each in tensors)
        return StoredLayer(keys, values, num_tokens, count, self.layer.keys.dtype)

    def first_position(self) -> int:
        return 0

    def write_rows(self, part: Part, heads: torch.Tensor, slots: torch.Tensor, numbers: torch.Tensor) -> None:
        """Overwrite rows. With the fp8 backend, whose scale is fixed, only these rows are quantised again; the other
        backends quantise all quantised rows again, as they do when their residual is full."""
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
            write_slots(codes.view(torch.uint8)[0], heads, slots, new.view(torch.uint8)[0, heads])
            setattr(self.layer, name, (codes, scale))
            return
        if residual is not None and residual.dim() == 4:
            rows = torch.cat([rows, residual], 2)
        write_slots(rows[0], heads, slots, numbers)
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


# ---- which handle a layer has ---------------------------------------------------------------------------------------


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


# ---- caches that other programs made --------------------------------------------------------------------------------


@torch.inference_mode()
def foreign_rows(cache: Any) -> dict[int, tuple[HeldRows, bool]]:
    """For each layer that has rows, by index: its rows `[B, H_kv, S, D]`, and whether it keeps a sliding window. Of an
    encoder-decoder only the decoder's own layers. Raises `InputError` for an object that is not a cache."""
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    if isinstance(cache, Cache):
        pairs = ((handle_of(layer).rows(), bool(getattr(layer, "is_sliding", False))) for layer in cache.layers)
        found = dict(enumerate(pairs))
    elif isinstance(cache, Iterable) and not isinstance(cache, str | bytes | dict | torch.Tensor):
        found = {index: (_of_pair(pair, index), False) for index, pair in enumerate(cache)}
    else:
        raise InputError(f"A {type(cache).__name__} is no cache: give past_key_values, or a list of (keys, values).")
    return {index: (rows, slides) for index, (rows, slides) in found.items() if rows is not None and rows.keys.shape[2]}


def _of_pair(pair: Any, index: int) -> HeldRows | None:
    try:
        keys, values = (torch.as_tensor(part) for part in tuple(pair)[:2])
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"Layer {index} is no pair of keys and values: give (keys, values) for each layer.") from None
    keys, values = (part[None] if part.dim() == 3 else part for part in (keys, values))
    if keys.dim() != 4 or values.dim() != 4 or keys.shape[:3] != values.shape[:3]:
        raise InputError(
            f"Layer {index} has keys {list(keys.shape)} and values {list(values.shape)}: give [B, H, S, D] of one S."
        )
    return HeldRows(keys, values, 0)
