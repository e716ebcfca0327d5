"""The part of a sequence's cache that takes part in steps: it reserves room, is written by the forward, reports what
the step did to its rows, and goes back."""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

import torch

from engine.cache.attention_probe import Probe
from engine.cache.by_hand import UNTOUCHED
from engine.cache.contract import Evicted
from engine.cache.editable import EditableRows
from engine.cache.layers.build import decoder_config, handles_of, idle_cache, new_cache
from engine.cache.layers.cross import SourceCache
from engine.cache.layers.layer_handle import LayerHandle
from engine.cache.row_delta import RowDelta
from engine.predict.capacity import static_capacity
from engine.spec.cache import CacheSpec

# steps; a reader that looks only now and then asks `changes_since` what happened since its last look
DELTAS_KEPT = 64


class SteppedRows(EditableRows):
    """The rows of one sequence as steps write them, with the way back to earlier steps.

    `live` is the cache object that the model is called with; `layers` has a handle for each of its layers. In layout
    `none` nothing is kept between steps: every step gets a fresh scratch cache, which stays readable until the next one
    so that it can be shown. `num_restored` is the number of evicted rows that the latest `crop` restored. `num_source`
    is the number of leading tokens that an encoder reads (0 without an encoder).
    """

    num_restored = 0

    def __init__(self, spec: CacheSpec, config: Any, max_length: int, num_source: int = 0) -> None:
        self.spec, self.num_source = spec, num_source
        self._config, self._has_encoder = decoder_config(config), bool(getattr(config, "is_encoder_decoder", False))
        self.capacity = static_capacity(spec, max_length) if spec.form == "static" else None
        # for each step: number of tokens before it, number of tokens after it, one delta per layer
        self._deltas: deque[tuple[int, int, list[RowDelta]]] = deque(maxlen=DELTAS_KEPT)
        self._set_live(self._build())
        self._scratch_before: Any = None
        # number of tokens and a copy of the layers, kept while a step may fail: see `_needs_backup`
        self._backup: tuple[int, Any] | None = None
        self.num_tokens = 0
        self.by_hand = UNTOUCHED
        self._idle = idle_cache(self._config, max_length) if spec.layout == "allocated" else None

    @property
    def prompt_ended_at(self) -> int | None:
        """Number of tokens at which the prompt ended, as far as the cache acts on that; here the encoder's tokens and
        the decoder's start token."""
        return self.num_source + 1 if self.num_source else None

    def num_decoded(self, num_tokens: int) -> int:
        """How many of the sequence's first `num_tokens` tokens the decoder reads itself: all of them, or in an
        encoder-decoder those after the source. Rows, pages and rules of the decoder's own layers count these."""
        return max(0, num_tokens - self.num_source)

    def num_own(self, layer_index: int, num_tokens: int) -> int:
        """How many of the first `num_tokens` tokens have rows in this layer: all of them, or in an encoder-decoder the
        source's (cross layer) or the decoder's (own layer)."""
        if not isinstance(self.live, SourceCache):
            return num_tokens
        is_cross = layer_index >= len(self.layers) // 2
        return min(num_tokens, self.num_source) if is_cross else self.num_decoded(num_tokens)

    def new_row_offsets(self, first_position: int) -> dict[int, int]:
        """For each cross layer, the index 0 among the rows from `first_position` on at which its rows begin. Empty
        where there is no encoder, or where `first_position` is after the source: then cross layers got no new rows."""
        if not isinstance(self.live, SourceCache) or first_position >= self.num_source:
            return {}
        return dict.fromkeys(range(len(self.layers) // 2, len(self.layers)), 0)

    def _build(self) -> Any:
        """An empty cache for the model: the layers of this cache mode, and in an encoder-decoder a cross layer for
        each."""
        made = self._build_own()
        return SourceCache(made, self.num_source) if self._has_encoder else made

    def _build_own(self) -> Any:
        return new_cache(self.spec, self._config, self.capacity)

    def _set_live(self, live: Any) -> None:
        self.live = live
        self.layers: list[LayerHandle] = handles_of(live)
        if not self.spec.recomputes:
            self._deltas.clear()  # they describe layers that are no longer in use

    # ---- one step ----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def begin(self, num_new: int) -> None:
        """Make room for `num_new` rows, or raise and leave everything as it was."""
        if self.spec.recomputes:
            self._scratch_before = self.live
            self._set_live(self._build())
            if isinstance(self.live, SourceCache):
                # every step recomputes K and V, but the encoder runs only once
                self.live.encoded = self._scratch_before.encoded
        elif self._needs_backup:
            self._backup = self.num_tokens, self._copied_layers(self.live)
        for layer in self.layers:
            layer.reserve(num_new)

    def cancel_begin(self) -> None:
        """Undo `begin` when no forward follows: free the pages that it took. Contiguous layouts keep their buffers, so
        there is nothing to do."""

    def can_write_ahead(self, num_tokens: int, num_sequences: int = 1) -> bool:
        """Whether the row at position `num_tokens` can be written before its token is part of the sequence, in
        `num_sequences` sequences at once. This needs append-only rows, not edited by hand, and room that no other
        sequence reads."""
        is_plain = self.spec.is_append_only and not self.by_hand
        return is_plain and all(layer.can_write_ahead for layer in self.layers)

    def uncount_row(self, num_tokens: int) -> None:
        """Stop counting the newest row, which is at position `num_tokens`; its numbers stay written."""
        for layer in self.layers:
            layer.uncount_row()

    def count_row(self) -> None:
        """Count an uncounted row again; `begin` has made room for it."""
        for layer in self.layers:
            layer.count_row()

    @torch.inference_mode()
    def clear_row_ahead(self, num_tokens: int) -> None:
        """Zero the row at position `num_tokens`, as if it had never been written, whether it is uncounted or some
        layers count it."""
        for layer in self.layers:
            layer.crop(num_tokens)
            layer.count_row()
            layer.crop(num_tokens)

    @property
    def _needs_backup(self) -> bool:
        """Whether `begin` copies the layers so that a failed step can be undone. Needed for caches edited by hand that
        cannot crop: edited rows cannot be recomputed, and transformers' windows, states and quantisers cannot go
        back."""
        return bool(self.by_hand) and not (self.spec.recomputes or self.spec.is_compressed or self.keeps_all_rows)

    def plan_forward(self, num_new: int) -> None:
        """Announce that the next forward feeds `num_new` tokens of this sequence alone; paged layouts map pages for
        it."""

    def probe(self, observe: bool) -> Probe | None:
        """What a forward must record of attention: the newest query's weights if `observe`, and more where an eviction
        rule needs it."""
        return Probe() if observe else None

    def compress(self, num_tokens: int, num_prompt_tokens: int, probe: Probe | None) -> tuple[Evicted, ...]:
        """After a forward, quantise and evict what the spec asks for, in all layers or (on failure) in none. Returns
        what was evicted; which rows these are may still be on the device only."""
        return ()

    def commit(self, num_tokens: int) -> list[RowDelta]:
        """Conclude the step: the sequence now has `num_tokens` tokens. Returns what the step did to the rows of each
        layer."""
        before, written = self.num_tokens, RowDelta(range(self.num_tokens, num_tokens))
        if self.spec.recomputes:
            written = RowDelta(written.written, range(before), range(before))
        deltas = [layer.commit(written) for layer in self.layers]
        if isinstance(self.live, SourceCache) and not self.spec.recomputes:
            self.live.encoded = None  # the cross layers have computed their K and V from it
        self.num_tokens = num_tokens
        self._deltas.append((before, num_tokens, deltas))
        return deltas

    def take_encoder_s(self) -> float:
        """Seconds that the encoder took in the latest forward, 0 where none ran; a second call returns 0."""
        if not isinstance(self.live, SourceCache):
            return 0.0
        took, self.live.encoder_s = self.live.encoder_s, 0.0
        return took

    def release_undo(self) -> None:
        """Drop the copies kept for undoing the step: it cannot fail any more."""
        self._scratch_before = self._backup = None

    # ---- going back --------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def crop(self, num_tokens: int) -> bool:
        """Go back to the first `num_tokens` tokens, bit for bit. Returns False, and does nothing, if this cache does
        not keep what that needs."""
        if self.spec.recomputes:
            return self._crop_scratch(num_tokens)
        if self._backup is not None and self._backup[0] == num_tokens:
            self._set_live(self._backup[1])
            self.num_tokens, self._backup = num_tokens, None
            return True
        if self._needs_backup and self._backup is None and num_tokens == self.num_tokens:
            return True  # no forward has begun
        if not self.by_hand.knows(num_tokens) or not all(layer.can_crop(num_tokens) for layer in self.layers):
            return False
        self.by_hand = self.by_hand.back_to(num_tokens)
        self.num_restored = sum(layer.crop(num_tokens) for layer in self.layers)
        self.num_tokens = num_tokens
        self._deltas.clear()
        return True

    def _crop_scratch(self, num_tokens: int) -> bool:
        """Replace the scratch cache of a failed step by that of the step before it."""
        scratch = self._scratch_before or self.live
        if not all(layer.knows(num_tokens) for layer in handles_of(scratch)):
            return False  # its sliding windows have moved past `num_tokens`
        self._set_live(scratch)
        self.num_tokens, self._scratch_before = num_tokens, None
        self._deltas.clear()
        return True

    @property
    def keeps_all_rows(self) -> bool:
        """Whether every layer holds every row, so that a cache in another layout can be filled from this one."""
        return all(layer.keeps_all_rows for layer in self.layers)

    @torch.inference_mode()
    def _copied_layers(self, live: Any) -> Any:
        made, memo = self._build(), dict[int, Any]()
        made.layers = [copy.deepcopy(layer, memo) for layer in live.layers]
        return made
