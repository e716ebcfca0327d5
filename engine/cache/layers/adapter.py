"""The one place that knows transformers' cache classes from the inside.

Everything else sees a `SequenceCache`: the K and V of one sequence, whatever layout holds them.

Shapes: `[B, H_kv, S, D]`, with B = 1. In latent attention (MLA) "keys" is the compressed latent and "values" the
shared rotary key, exactly as transformers caches them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, QuantizedCache, StaticCache
from transformers.cache_utils import (
    BaseQuantizedLayer,
    Cache,
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from engine.cache.attention_probe import Probe
from engine.cache.layers.growing import GrowingLayer, Room
from engine.cache.stacked import side_by_side
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.predict.capacity import DEFAULT_STATIC_TOKENS, cache_capacity
from engine.spec.cache import CacheSpec, Quantizer
from engine.wire.evictions import Eviction
from engine.wire.prefix_match import WhyNotReused

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, eq=False)
class HeldRows:
    """What one layer holds now: keys `[1, H_kv, S, D_k]`, values `[1, H_kv, S, D_v]` of positions from `first` on.

    Where rows were dropped from between, `positions` `[H_kv, S]` say which are left, ascending in every head.
    """

    keys: torch.Tensor
    values: torch.Tensor
    first: int
    positions: torch.Tensor | None = None

    @property
    def stop(self) -> int:
        """One past the last position held."""
        if self.positions is None:
            return self.first + self.keys.shape[2]
        return int(self.positions.max()) + 1 if self.positions.numel() else 0


@dataclass(frozen=True)
class PageCounts:
    """Pages of one sequence. `why_not_reused` was found at admission, or says in words why nothing can be shared."""

    held: int = 0
    shared: int = 0
    hit_tokens: int = 0
    why_not_reused: WhyNotReused | str | None = None


class SequenceCache:
    """The cache of one sequence in one of the contiguous layouts.

    `live` is what the model is called with. In layout `none` nothing is kept between steps: every step gets a fresh
    scratch cache, which stays readable until the next one so that it can be looked at. `put_back` counts the dropped
    rows that going back has returned.
    """

    put_back = 0

    def __init__(self, spec: CacheSpec, config: Any, max_length: int) -> None:
        self.spec = spec
        self._config = config.get_text_config(decoder=True)
        self.capacity = cache_capacity(spec, max_length)
        self.live = self._build()
        self._before: Cache | None = None
        self.num_tokens = 0
        self._idle = idle_room(self._config, max_length) if spec.layout == "allocated" else None

    def _build(self) -> Any:
        if self.spec.layout == "static":
            return StaticCache(config=self._config, max_cache_len=self.capacity)
        if self.spec.quantizer is not None:
            return quantized_cache(self.spec.quantizer, self._config)
        cache = DynamicCache(config=self._config)
        if self.spec.layout == "growing":
            room = Room(len(cache.layers))
            cache.layers = [growing_in_place_of(layer, room, index) for index, layer in enumerate(cache.layers)]
        return cache

    # ---- one step ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def begin(self, num_new: int) -> None:
        """Make room for `num_new` rows, or raise and leave everything as it was."""
        if self.spec.recomputes:
            self._before, self.live = self.live, self._build()
        for layer in self.live.layers:
            if isinstance(layer, GrowingLayer):
                layer.reserve(num_new)

    def probe(self, observe: bool) -> Probe | None:
        """What a forward must show: the newest attention row to whoever observes, more to a rule that drops rows."""
        return Probe() if observe else None

    def condense(self, num_tokens: int, num_prompt_tokens: int, probe: Probe | None) -> tuple[Eviction, ...]:
        """After a forward: code and drop what the spec asks for, in all layers or in none; says what was dropped."""
        return ()

    def commit(self, num_tokens: int) -> None:
        """The step is done: the sequence now has `num_tokens` rows."""
        self.num_tokens = num_tokens

    def settle(self) -> None:
        """The step cannot fail any more: what it would have gone back to may go."""
        self._before = None

    # ---- going back ----------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def crop(self, num_tokens: int) -> bool:
        """Back to the first `num_tokens` rows, exactly; False (and nothing done) if this cache has forgotten them."""
        if self.spec.recomputes:
            # what a failed step has scratched gives way to what the step before it did
            scratch = self._before or self.live
            if not all(keeps_rows(layer, num_tokens) for layer in scratch.layers):
                return False  # its windows are those of a later step
            self.num_tokens, self.live, self._before = num_tokens, scratch, None
            return True
        if not all(can_crop(layer, num_tokens) for layer in self.live.layers):
            return False
        for layer in self.live.layers:
            crop_layer(layer, num_tokens)
        self.num_tokens = num_tokens
        return True

    def admit(self, token_ids: list[int], spare_pages: int) -> int:
        """Start from rows that are known already; returns how many. Contiguous layouts know none."""
        return 0

    @torch.inference_mode()
    def fork_from(self, other: SequenceCache, num_tokens: int) -> bool:
        """Hold what another cache of the same layout held with `num_tokens` tokens; False, and empty, where that cannot
        be copied exactly."""
        if self.spec.recomputes:
            self.live = other.live  # nobody writes to it: every step recomputes into a cache of its own
        elif not self.take_over(other):
            return False
        return self._crop_fork(num_tokens)

    def _crop_fork(self, num_tokens: int) -> bool:
        if not self.crop(num_tokens):
            self.clear()
            return False
        return True

    def page_counts(self) -> PageCounts:
        """Pages held, shared and hit, and why no more was reused; nothing outside paged layouts."""
        return PageCounts()

    def publish(self, token_ids: list[int]) -> None:
        """Let other sequences find what this one holds, where the layout can share."""

    def close(self) -> None:
        """The sequence is gone: give back what it shares with others."""

    def clear(self) -> None:
        """Forget everything."""
        self.live = self._build()
        self.num_tokens = 0

    # ---- reading -------------------------------------------------------------------------------------------------

    def rows(self, layer_index: int) -> HeldRows | None:
        """The rows a layer holds, as views; None where it keeps no K and V (linear, shared or empty layers)."""
        layers = self.live.layers
        return held_rows(layers[layer_index]) if layer_index < len(layers) else None

    def knows(self, num_tokens: int) -> bool:
        """Whether `rows_at` that many tokens are those that stood there then, bit for bit."""
        spec = self.spec
        if num_tokens >= self.num_tokens and not spec.recomputes:  # a scratch may have more rows than there are tokens
            return True
        is_written_once = spec.is_paged and spec.retention.keeps_all  # a row of a page, coded or not
        return (spec.is_exact or is_written_once) and all(keeps_rows(layer, num_tokens) for layer in self.live.layers)

    def rows_at(self, layer_index: int, num_tokens: int) -> HeldRows | None:
        """The rows of a layer when the sequence had `num_tokens` tokens; later ones may stand behind them."""
        return self.rows(layer_index)

    def newest_rows(self, layer_index: int, first_position: int) -> HeldRows | None:
        """The rows from a position on, none of which was dropped yet; None where the layer has none of them."""
        rows = self.rows(layer_index)
        if rows is None or rows.stop <= first_position:
            return None
        start = max(0, first_position - rows.first)
        return HeldRows(rows.keys[:, :, start:], rows.values[:, :, start:], rows.first + start)

    def all_newest_rows(self, first_position: int) -> dict[int, Pair]:
        """`newest_rows` of every layer that has any: keys `[H_kv, T, D_k]`, values `[H_kv, T, D_v]`, as views."""
        pairs = rows_at_once(self.live.layers, first_position)
        if pairs is not None:
            return dict(enumerate(pairs))
        found = ((layer, self.newest_rows(layer, first_position)) for layer in range(self.num_layers))
        return {layer: (rows.keys[0], rows.values[0]) for layer, rows in found if rows is not None}

    def positions(self, layer_index: int) -> torch.Tensor | None:
        """Positions `[H_kv, S]` of the rows a layer holds, None where they are one run."""
        return None

    @property
    def journal_bytes(self) -> int:
        """Bytes kept only for going back."""
        return 0

    @property
    def prompt_ended_at(self) -> int | None:
        """Tokens of the prompt, once what waits for its end was coded or dropped."""
        return None

    @property
    def is_lossy(self) -> bool:
        """Whether what is read differs from what was computed."""
        return self.spec.layout == "quantized"

    @property
    def num_layers(self) -> int:
        return len(self.live.layers)

    @property
    def idle(self) -> Cache | None:
        """Room that is reserved and never read: the layout `allocated` has it, no other does."""
        return self._idle

    def layer_bytes(self, layer_index: int) -> tuple[int, int]:
        """Bytes of one layer: in rows that hold tokens (or in state), and in all its storages."""
        if layer_index >= self.num_layers:
            return 0, 0
        layer = self.live.layers[layer_index]
        if isinstance(layer, GrowingLayer):
            return layer.stored_bytes, layer.reserved_bytes
        reserved = sum(storage_bytes(t) for t in distinct_storages(layer))
        rows = held_rows(layer)
        if rows is None:
            return reserved, reserved
        stored = rows.keys.numel() * rows.keys.element_size() + rows.values.numel() * rows.values.element_size()
        return min(stored + state_bytes(layer), reserved), reserved

    def all_bytes(self) -> tuple[tuple[int, int], ...]:
        """`layer_bytes` of every layer."""
        return tuple(map(self.layer_bytes, range(self.num_layers)))

    # ---- conversion ----------------------------------------------------------------------------------------------

    @property
    def keeps_all_rows(self) -> bool:
        """Whether every layer holds every row, so that another layout can be filled from this one."""
        return all(is_plain(layer) for layer in self.live.layers)

    @torch.inference_mode()
    def take_over(self, other: SequenceCache) -> bool:
        """Copy the rows of another layout; False (and nothing done) if they cannot be carried over exactly."""
        if self.spec.recomputes or other.spec.recomputes:
            return self.spec.recomputes
        if not all(map(can_be_filled, self.live.layers)) or not other.keeps_all_rows:
            return False
        for index in range(other.num_layers):
            rows = other.rows(index)
            if rows is not None and rows.keys.shape[2]:
                self.live.update(rows.keys, rows.values, index)
        self.num_tokens = other.num_tokens
        return True


def quantized_cache(quantizer: Quantizer, config: Any) -> Cache:
    """transformers' QuantizedCache, or why there is none."""
    names = {"nbits": quantizer.bits, "q_group_size": quantizer.group, "residual_length": quantizer.residual}
    try:
        return QuantizedCache(quantizer.backend, config, **{k: v for k, v in names.items() if v is not None})
    except ImportError:
        package = {"quanto": "optimum-quanto", "hqq": "hqq"}[quantizer.backend]
        raise InputError(f"The {quantizer.backend} quantiser is not installed: install {package} or use fp8.") from None
    except ValueError as error:
        if "full attention" in str(error):
            raise InputError(
                "transformers' quantised cache takes models with full attention in every layer, which this one is not: "
                "use the fp8, int8 or KIVI codec."
            ) from None
        raise InputError(f"transformers' quantised cache refuses these settings ({error}): change them.") from None


def dequantised_rows(layer: BaseQuantizedLayer) -> HeldRows | None:
    """What a quantised layer of transformers would hand to attention."""
    if layer._quantized_keys is None:
        return None
    made = []
    for coded, residual in ((layer._quantized_keys, layer.keys), (layer._quantized_values, layer.values)):
        rows = layer._dequantize(coded)
        made.append(torch.cat([rows, residual], 2) if residual is not None and residual.dim() == 4 else rows)
    return HeldRows(made[0], made[1], 0)


@torch.inference_mode()
def idle_room(config: Any, max_length: int) -> Cache:
    """A static cache for the whole context, zeroed before the first token, as a serving layer reserves it."""
    geometry = CacheGeometry.from_config(config)
    cache = StaticCache(config=config, max_cache_len=min(max_length, DEFAULT_STATIC_TOKENS))
    dtype = getattr(config, "dtype", None) or torch.float32
    for layer in geometry.attention_layers:
        shape = (1, layer.num_kv_heads, 0)
        cache.layers[layer.index].lazy_initialization(
            torch.empty(*shape, layer.key_dim, dtype=dtype), torch.empty(*shape, layer.value_dim, dtype=dtype)
        )
    return cache


def growing_in_place_of(layer: CacheLayerMixin, room: Room, index: int) -> CacheLayerMixin:
    """Our layer for a plain full or sliding one; anything else stays as transformers made it."""
    return GrowingLayer(room, index) if type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) else layer


def rows_at_once(layers: list[CacheLayerMixin], first_position: int) -> list[Pair] | None:
    """The rows from a position on of layers that all grow, asked of all at once where they lie in one room; None where
    some layer is of another kind, or without new rows."""
    growing = [layer for layer in layers if isinstance(layer, GrowingLayer) and layer.is_initialized]
    count = min((layer.length for layer in growing), default=0) - first_position
    if len(growing) < len(layers) or count <= 0:
        return None
    keys, values = (side_by_side([getattr(layer, name) for layer in growing]) for name in ("keys", "values"))
    if keys is None or values is None:
        pairs = ((layer.keys[0], layer.values[0]) for layer in growing)
        return [(k.narrow(1, first_position, count), v.narrow(1, first_position, count)) for k, v in pairs]
    rooms = (room[:, 0].narrow(2, first_position, count).unbind() for room in (keys, values))
    return list(zip(*rooms, strict=True))


def held_rows(layer: CacheLayerMixin) -> HeldRows | None:
    if isinstance(layer, BaseQuantizedLayer):
        return dequantised_rows(layer)
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    if keys is None or values is None or keys.dim() != 4:
        return None
    if isinstance(layer, GrowingLayer):
        return HeldRows(layer.held_keys, layer.held_values, 0)
    if isinstance(layer, StaticSlidingWindowLayer):
        held = min(layer.cumulative_length_int, layer.max_cache_len)
        return HeldRows(keys[:, :, :held], values[:, :, :held], layer.cumulative_length_int - held)
    if isinstance(layer, StaticLayer):
        held = int(layer.get_seq_length())
        return HeldRows(keys[:, :, :held], values[:, :, :held], 0)
    first = layer.cumulative_length - keys.shape[2] if isinstance(layer, DynamicSlidingWindowLayer) else 0
    return HeldRows(keys, values, first)


def is_pageable(layer: CacheLayerMixin) -> bool:
    """A layer that keeps rows of K and V and nothing else."""
    return type(layer) in (DynamicLayer, DynamicSlidingWindowLayer)


def state_of_other_layers(cache: Cache) -> bool:
    """Whether the cache has layers whose state only moves forward."""
    return any(hasattr(layer, "conv_states") for layer in cache.layers)


def is_plain(layer: CacheLayerMixin) -> bool:
    """A layer that keeps every row, in order, and nothing else."""
    return type(layer) in (DynamicLayer, StaticLayer, GrowingLayer)


def can_be_filled(layer: CacheLayerMixin) -> bool:
    """Whether rows computed elsewhere may be written to it."""
    return is_plain(layer) or isinstance(layer, BaseQuantizedLayer)


def can_crop(layer: CacheLayerMixin, num_tokens: int) -> bool:
    if is_plain(layer) or getattr(layer, "keys", 0) is None:
        return True
    if type(layer) is DynamicSlidingWindowLayer:
        return bool(layer.cumulative_length < layer.sliding_window)
    if type(layer) is StaticSlidingWindowLayer:
        return bool(layer.cumulative_length_int <= layer.max_cache_len)
    # what is left has a state that only moves forward, except layers that never hold anything
    return not hasattr(layer, "conv_states") and not hasattr(layer, "keys")


def keeps_rows(layer: CacheLayerMixin, num_tokens: int) -> bool:
    """Whether the first rows that a layer holds are all those that it held with so many tokens: what keeps a window
    and has let rows go holds others now. A layer without K and V has none to lose."""
    if isinstance(layer, DynamicSlidingWindowLayer):
        return bool(num_tokens >= layer.cumulative_length or layer.cumulative_length < layer.sliding_window)
    if isinstance(layer, StaticSlidingWindowLayer):
        return bool(num_tokens >= layer.cumulative_length_int or layer.cumulative_length_int <= layer.max_cache_len)
    return True


def crop_layer(layer: CacheLayerMixin, num_tokens: int) -> None:
    if isinstance(layer, GrowingLayer):
        layer.crop(num_tokens)
    elif isinstance(layer, StaticLayer):
        if layer.is_initialized:
            # zeroed, so that reserved room looks the same as before the rows were written
            layer.keys[:, :, num_tokens:].zero_()
            layer.values[:, :, num_tokens:].zero_()
            layer.cumulative_length.fill_(num_tokens)
            if isinstance(layer, StaticSlidingWindowLayer):
                layer.cumulative_length_int = num_tokens
    elif getattr(layer, "keys", None) is not None:
        layer.crop(num_tokens - layer.get_seq_length())


def tensors_of(layer: CacheLayerMixin) -> Iterator[torch.Tensor]:
    """Every tensor a layer object holds, whatever its class calls them."""
    for value in vars(layer).values():
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,):
            if isinstance(item, torch.Tensor) and item.dim() > 0:
                yield item


def distinct_storages(layer: CacheLayerMixin) -> list[torch.Tensor]:
    """One tensor per storage: some layers alias values to keys, and a sliced view keeps its whole storage alive."""
    return list({t.untyped_storage().data_ptr(): t for t in tensors_of(layer)}.values())


def storage_bytes(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().nbytes())


def state_bytes(layer: CacheLayerMixin) -> int:
    """Bytes beside K and V: recurrent and convolution states, indexer keys."""
    rows = {id(layer.keys), id(layer.values)}
    return sum(t.numel() * t.element_size() for t in tensors_of(layer) if id(t) not in rows)
