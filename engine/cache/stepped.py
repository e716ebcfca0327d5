"""The K and V of one sequence as a step takes them up: room, the forward, what it did to the rows, and the way back."""

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

DELTAS_KEPT = 64  # steps, for whoever looks now and then and asks what happened in between


class SteppedRows(EditableRows):
    """Rows that steps write, and that can be gone back from.

    `live` is what the model is called with; `layers` has a handle for each of its layers. In layout `none` nothing is
    kept between steps: every step gets a fresh scratch cache, which stays readable until the next one so that it can
    be looked at. `num_restored` counts the dropped rows that going back has returned. `num_source` is the number of
    tokens, the first ones, that an encoder reads.
    """

    num_restored = 0

    def __init__(self, spec: CacheSpec, config: Any, max_length: int, num_source: int = 0) -> None:
        self.spec, self.num_source = spec, num_source
        self._config, self._has_encoder = decoder_config(config), bool(getattr(config, "is_encoder_decoder", False))
        self.capacity = static_capacity(spec, max_length) if spec.form == "static" else None
        # of each step, by the tokens before and after it
        self._deltas: deque[tuple[int, int, list[RowDelta]]] = deque(maxlen=DELTAS_KEPT)
        self._use(self._build())
        self._before: Any = None
        self._backup: tuple[int, Any] | None = None  # of an edited cache that cannot crop, while a step may fail
        self.num_tokens = 0
        self.by_hand = UNTOUCHED
        self._idle = idle_cache(self._config, max_length) if spec.layout == "allocated" else None

    @property
    def prompt_ended_at(self) -> int | None:
        return self.num_source + 1 if self.num_source else None

    def num_decoded(self, num_tokens: int) -> int:
        """How many of so many tokens the decoder reads itself: all but those that an encoder read, where there is one.
        Rows, pages and rules of the decoder's own layers count these."""
        return max(0, num_tokens - self.num_source)

    def num_own(self, layer_index: int, num_tokens: int) -> int:
        """How many of so many tokens a layer has rows of: behind an encoder either the source's or the decoder's."""
        if not isinstance(self.live, SourceCache):
            return num_tokens
        is_cross = layer_index >= len(self.layers) // 2
        return min(num_tokens, self.num_source) if is_cross else self.num_decoded(num_tokens)

    def new_row_offsets(self, first_position: int) -> dict[int, int]:
        """Where in the rows from a position on those of a layer begin that have none of the newest: cross layers."""
        if not isinstance(self.live, SourceCache) or first_position >= self.num_source:
            return {}
        return dict.fromkeys(range(len(self.layers) // 2, len(self.layers)), 0)

    def _build(self) -> Any:
        """An empty cache for the model: the layers of this mode, and behind an encoder cross layers beside them."""
        made = self._build_own()
        return SourceCache(made, self.num_source) if self._has_encoder else made

    def _build_own(self) -> Any:
        return new_cache(self.spec, self._config, self.capacity)

    def _use(self, live: Any) -> None:
        self.live = live
        self.layers: list[LayerHandle] = handles_of(live)
        if not self.spec.recomputes:
            self._deltas.clear()  # they were those of other layers

    # ---- one step ----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def begin(self, num_new: int) -> None:
        """Make room for `num_new` rows, or raise and leave everything as it was."""
        if self.spec.recomputes:
            self._before = self.live
            self._use(self._build())
            if isinstance(self.live, SourceCache):
                self.live.encoded = self._before.encoded  # the encoder runs once, whatever is computed anew
        elif self._is_copied_first:
            self._backup = self.num_tokens, self._copied_layers(self.live)
        for layer in self.layers:
            layer.reserve(num_new)

    def give_room_back(self) -> None:
        """No forward follows on `begin` after all: the pages that were taken for its rows are free again."""

    def has_row_behind(self, num_tokens: int, num_sequences: int = 1) -> bool:
        """Whether the row of a token behind `num_tokens` can be written before that token is one of the sequence, and
        so for `num_sequences` at once: where every row stays where and as it was written, in room that nobody else
        reads."""
        is_plain = self.spec.is_append_only and not self.by_hand
        return is_plain and all(layer.has_row_behind for layer in self.layers)

    def hide_row(self, num_tokens: int) -> None:
        """The newest row, behind `num_tokens`, is written, and not counted."""
        for layer in self.layers:
            layer.hide_row()

    def count_row(self) -> None:
        """A hidden row is counted; `begin` has made room for it."""
        for layer in self.layers:
            layer.count_row()

    @torch.inference_mode()
    def clear_row_behind(self, num_tokens: int) -> None:
        """The row behind `num_tokens` is as if it had never been written; it is hidden, or some layers count it."""
        for layer in self.layers:
            layer.crop(num_tokens)
            layer.count_row()
            layer.crop(num_tokens)

    @property
    def _is_copied_first(self) -> bool:
        """Whether a step that fails is undone by a copy: rows edited by hand cannot be computed again, and windows,
        states and quantisers of transformers not be cropped."""
        return bool(self.by_hand) and not (self.spec.recomputes or self.spec.is_compressed or self.keeps_all_rows)

    def plan_forward(self, num_new: int) -> None:
        """The next forward feeds `num_new` tokens of this sequence alone."""

    def probe(self, observe: bool) -> Probe | None:
        """What a forward must show: the newest attention row to whoever observes, more to a rule that drops rows."""
        return Probe() if observe else None

    def compress(self, num_tokens: int, num_prompt_tokens: int, probe: Probe | None) -> tuple[Evicted, ...]:
        """After a forward: code and drop what the spec asks for, in all layers or in none; says what was dropped, of
        which the host may not know yet which rows."""
        return ()

    def commit(self, num_tokens: int) -> list[RowDelta]:
        """The step is done: the sequence now has `num_tokens` tokens. Says what it did to the rows of each layer."""
        before, written = self.num_tokens, RowDelta(range(self.num_tokens, num_tokens))
        if self.spec.recomputes:
            written = RowDelta(written.written, range(before), range(before))
        deltas = [layer.commit(written) for layer in self.layers]
        if isinstance(self.live, SourceCache) and not self.spec.recomputes:
            self.live.encoded = None  # the cross layers have what they need of it
        self.num_tokens = num_tokens
        self._deltas.append((before, num_tokens, deltas))
        return deltas

    def take_encoder_s(self) -> float:
        """What the encoder took in the forward that has just been; 0 where none ran."""
        if not isinstance(self.live, SourceCache):
            return 0.0
        took, self.live.encoder_s = self.live.encoder_s, 0.0
        return took

    def release_undo(self) -> None:
        """The step cannot fail any more: what it would have gone back to may go."""
        self._before = self._backup = None

    # ---- going back --------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def crop(self, num_tokens: int) -> bool:
        """Back to the first `num_tokens` tokens, bit for bit; False (and nothing done) if this cache has forgotten."""
        if self.spec.recomputes:
            return self._crop_scratch(num_tokens)
        if self._backup is not None and self._backup[0] == num_tokens:
            self._use(self._backup[1])
            self.num_tokens, self._backup = num_tokens, None
            return True
        if self._is_copied_first and self._backup is None and num_tokens == self.num_tokens:
            return True  # no forward has begun
        if not self.by_hand.knows(num_tokens) or not all(layer.can_crop(num_tokens) for layer in self.layers):
            return False
        self.by_hand = self.by_hand.back_to(num_tokens)
        self.num_restored = sum(layer.crop(num_tokens) for layer in self.layers)
        self.num_tokens = num_tokens
        self._deltas.clear()
        return True

    def _crop_scratch(self, num_tokens: int) -> bool:
        """What a failed step has computed gives way to what the step before it did."""
        scratch = self._before or self.live
        if not all(layer.knows(num_tokens) for layer in handles_of(scratch)):
            return False  # its windows are those of a later step
        self._use(scratch)
        self.num_tokens, self._before = num_tokens, None
        self._deltas.clear()
        return True

    @property
    def keeps_all_rows(self) -> bool:
        """Whether every layer holds every row, so that another layout can be filled from this one."""
        return all(layer.keeps_all_rows for layer in self.layers)

    @torch.inference_mode()
    def _copied_layers(self, live: Any) -> Any:
        made, memo = self._build(), dict[int, Any]()
        made.layers = [copy.deepcopy(layer, memo) for layer in live.layers]
        return made
