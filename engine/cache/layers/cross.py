"""The cache of an encoder-decoder: cross-attention rows of the encoder's tokens, written once, beside the decoder's own
rows.

Both parts count positions in one sequence of tokens, the source first and then the decoder's: a cross layer holds the
rows of positions `0 … num_source - 1`, the decoder's own layers those from `num_source` on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from transformers import EncoderDecoderCache
from transformers.cache_utils import Cache

from engine.cache.contract import NO_ROWS, HeldBytes, HeldRows, Pair, RowDelta, StoredLayer
from engine.cache.layers.layer import LayerHandle, OwnLayer
from engine.spec.codec import Part


class CrossLayer(OwnLayer):
    """K and V `[B, H_kv, S, D]` of the tokens that the encoder read: written by the first forward, constant from then
    on."""

    is_sliding = False
    keeps_all_rows = True

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> Pair:
        self.keys, self.values = (rows.clone(memory_format=torch.contiguous_format) for rows in (keys, values))
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return 0 if self.keys is None else int(self.keys.shape[2])

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length(), 0

    # ---- LayerHandle ---------------------------------------------------------------------------------------------

    def rows(self) -> HeldRows | None:
        return None if self.keys is None else HeldRows(self.keys, self.values, 0)

    def row_positions(self) -> torch.Tensor | None:
        """The positions of the source. They are given although they are consecutive, because they do not reach to the
        newest token, as readers of `None` would assume."""
        if self.keys is None:
            return None
        return torch.arange(self.get_seq_length(), device=self.keys.device).expand(self.keys.shape[1], -1)

    def held_bytes(self) -> HeldBytes:
        count = 0 if self.keys is None else int(self.keys.nbytes + self.values.nbytes)
        return HeldBytes(count, count)

    def commit(self, written: RowDelta) -> RowDelta:
        return restrict_delta(written, range(self.get_seq_length()))

    def can_crop(self, num_tokens: int) -> bool:
        return self.keys is None or num_tokens == 0 or num_tokens > self.get_seq_length()

    def crop(self, num_tokens: int) -> int:
        if num_tokens == 0:
            self.keys = self.values = None  # type: ignore[assignment]
            self.is_initialized = False
        return 0


class SourceCache(EncoderDecoderCache):  # type: ignore[misc]
    """The cache that the decoder of an encoder-decoder is called with: `layers` are its own layers and after them a
    cross layer for each.

    `encoded` `[B, S, D]` is the encoder's output. It is dropped once every cross layer has its rows, but kept in layout
    `none`, where every forward computes them again. `encoder_s` is how many seconds the encoder took.
    """

    encoder_s = 0.0

    def __init__(self, own: Cache, num_source: int) -> None:
        self.self_attention_cache = own
        self.cross_attention_cache = Cache(layers=[CrossLayer() for _ in own.layers])
        self.num_source = num_source
        self.encoded: torch.Tensor | None = None

    @property
    def layers(self) -> list[Any]:
        return [*self.self_attention_cache.layers, *self.cross_attention_cache.layers]

    @layers.setter
    def layers(self, layers: list[Any]) -> None:
        half = len(layers) // 2
        self.self_attention_cache.layers, self.cross_attention_cache.layers = layers[:half], layers[half:]

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *args: object, **kwargs: object) -> Pair:
        """Append rows to a layer, counted over both halves. A decoder calls the two half caches directly."""
        return self.layers[layer_idx].update(keys, values, *args, **kwargs)  # type: ignore[no-any-return]

    @property
    def is_updated(self) -> dict[int, bool]:
        """For each cross layer, whether it has its rows; transformers' decoder reads this before it computes them."""
        return {index: layer.is_initialized for index, layer in enumerate(self.cross_attention_cache.layers)}

    @property
    def has_source(self) -> bool:
        """Whether every cross layer has its rows."""
        return all(self.is_updated.values())


class DecoderRows(LayerHandle):
    """The handle of one of the decoder's own layers. It translates positions: the layer's row 0 is that of the first
    token after the source."""

    def __init__(self, layer: LayerHandle, num_source: int) -> None:
        self._layer, self._source = layer, num_source
        self.keeps_all_rows, self.takes_rows, self.has_state = layer.keeps_all_rows, layer.takes_rows, layer.has_state
        for name in ("held_bytes", "states", "reserve", "stored_states", "restore_states", "write_rows"):
            setattr(self, name, getattr(layer, name))  # they are not about positions

    def _own(self, num_tokens: int) -> int:
        """How many of the first `num_tokens` tokens are the decoder's."""
        return max(0, num_tokens - self._source)

    def _moved(self, rows: HeldRows | None) -> HeldRows | None:
        if rows is None:
            return None
        return replace(rows, first=rows.first + self._source, positions=shifted(rows.positions, self._source))

    def rows(self) -> HeldRows | None:
        return self._moved(self._layer.rows())

    def rows_at(self, num_tokens: int | None = None, first_position: int | None = None) -> HeldRows | None:
        at, first = (None if count is None else self._own(count) for count in (num_tokens, first_position))
        return self._moved(self._layer.rows_at(at, first))

    def newest(self, part: Part, first_position: int, num_tokens: int | None = None) -> torch.Tensor:
        at = None if num_tokens is None else self._own(num_tokens)
        return self._layer.newest(part, self._own(first_position), at)

    def row_positions(self) -> torch.Tensor | None:
        return shifted(self._layer.row_positions(), self._source)

    def commit(self, written: RowDelta) -> RowDelta:
        mine = restrict_delta(written, range(self._source, max(self._source, written.written.stop)))
        return shift_delta(self._layer.commit(shift_delta(mine, -self._source)), self._source)

    def num_final(self, part: Part, num_tokens: int) -> int:
        return 0 if self._source else self._layer.num_final(part, num_tokens)

    def exact_from(self, num_tokens: int, part: Part) -> int:
        found = self._layer.exact_from(self._own(num_tokens), part)
        return found + self._source if found else 0

    def knows(self, num_tokens: int) -> bool:
        return self._layer.knows(self._own(num_tokens))

    def can_crop(self, num_tokens: int) -> bool:
        return self._layer.can_crop(self._own(num_tokens))

    def crop(self, num_tokens: int) -> int:
        return self._layer.crop(self._own(num_tokens))

    def stored(self, num_tokens: int) -> StoredLayer | None:
        found = self._layer.stored(self._own(num_tokens))
        if found is None:
            return None
        positions = shifted(found.positions, self._source)
        return replace(found, num_tokens=num_tokens, first=found.first + self._source, positions=positions)

    def restore(self, stored: StoredLayer) -> None:
        own, positions = self._own(stored.num_tokens), stored.positions
        # files of older versions have positions that count from the first token after the source, and need no shift
        if positions is not None and int(positions.max()) == stored.num_tokens - 1:
            positions = shifted(positions, -self._source)
        self._layer.restore(replace(stored, num_tokens=own, first=stored.first - self._source, positions=positions))

    def first_position(self) -> int:
        return self._layer.first_position() + self._source


def shifted(positions: torch.Tensor | None, by: int) -> torch.Tensor | None:
    """The positions plus `by`."""
    return None if positions is None else positions + by


def restrict_delta(delta: RowDelta, span: range) -> RowDelta:
    """The part of a delta that concerns the positions of `span`."""
    return map_ranges(delta, lambda run: intersection(run, span))


def shift_delta(delta: RowDelta, by: int) -> RowDelta:
    """The same delta with all positions moved by `by`."""
    found = map_ranges(delta, lambda run: range(run.start + by, run.stop + by) if run else NO_ROWS)
    return replace(found, evicted=tuple(positions + by for positions in delta.evicted)) if delta.evicted else found


def map_ranges(delta: RowDelta, change: Callable[[range], range]) -> RowDelta:
    """The same delta with `change` applied to every range of positions."""
    return replace(
        delta,
        written=change(delta.written),
        rewritten_keys=change(delta.rewritten_keys),
        rewritten_values=change(delta.rewritten_values),
        left_window=change(delta.left_window),
    )


def intersection(one: range, other: range) -> range:
    """The intersection of two ranges."""
    found = range(max(one.start, other.start), min(one.stop, other.stop))
    return found if found else NO_ROWS
