"""The K and V of one sequence: the interface of a cache for all code outside this folder, whatever its layout."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from engine.cache.attention_probe import Probe
from engine.cache.by_hand import UNTOUCHED, ByHand, RowMarks, RowWrite
from engine.cache.contract import (
    NO_ROWS,
    Evicted,
    HeldBytes,
    HeldRows,
    PageCounts,
    Pair,
    RowDelta,
    StateMatrix,
    StoredCache,
    combined_by_layer,
)
from engine.cache.layers.build import decoder_config, handles_of, idle_cache, new_cache
from engine.cache.layers.cross import CrossLayer, SourceCache
from engine.cache.layers.handles import handle_of
from engine.cache.layers.layer import LayerHandle, stacked_rows
from engine.cache.lost_rows import LostRows
from engine.cache.stacking import on_one_device, stacked_view
from engine.errors import InputError
from engine.predict.capacity import static_capacity
from engine.spec.cache import CacheSpec
from engine.spec.codec import PARTS, Part

if TYPE_CHECKING:
    from engine.cache.compressed.retention import Rule
    from engine.cache.paged.table import PageTable

# steps; a reader that looks only now and then asks `changes_since` what happened since its last look
DELTAS_KEPT = 64


class SequenceCache:
    """The cache of one sequence in a contiguous layout, and the base of the others. It takes part in steps, can be
    read now and as it was at earlier steps, goes back, is edited by hand, filled from another cache, stored and
    restored. Methods that only pages can do something in do nothing here.

    `model_cache` is transformers' cache object, with which the model is called; `layers` has a handle for each of its
    layers. In layout `none` nothing is kept between steps: every step gets a fresh scratch cache, which stays readable
    until the next one so that it can be shown. `lost` is the log of what steps removed, `by_hand` holds the edits made
    so far, `num_restored` is the number of evicted rows that the latest `crop` restored, and `num_source` the number of
    leading tokens that an encoder reads (0 without one). `rule` evicts rows, where there is one; `ended_at` is the
    number of tokens at which the prompt ended, once codecs or rules that wait for its end have run.
    """

    max_forward_tokens: int | None = None  # most tokens that one forward may compute; None: no limit
    num_restored = 0
    rule: Rule | None = None
    tables: list[PageTable]  # in a paged layout only

    def __init__(self, spec: CacheSpec, config: Any, max_length: int, num_source: int = 0) -> None:
        self.spec, self.num_source = spec, num_source
        self._config, self._has_encoder = decoder_config(config), bool(getattr(config, "is_encoder_decoder", False))
        self.capacity = static_capacity(spec, max_length) if spec.form == "static" else None
        # for each step: number of tokens before it, number of tokens after it, one delta per layer
        self._deltas: deque[tuple[int, int, list[RowDelta]]] = deque(maxlen=DELTAS_KEPT)
        self.lost = LostRows()
        self._set_model_cache(self._build())
        self._scratch_before: Any = None
        # number of tokens and copies of layers by index, kept while a step may fail: see `_needs_backup`
        self._backup: tuple[int, dict[int, Any]] | None = None
        self.num_tokens, self.by_hand = 0, UNTOUCHED
        self.ended_at: int | None = None
        self._idle = idle_cache(self._config, max_length) if spec.layout == "allocated" else None

    @property
    def prompt_ended_at(self) -> int | None:
        """`ended_at`, or behind an encoder its tokens and the decoder's start token; None before, and where no codec
        and no rule waits."""
        return self.num_source + 1 if self.ended_at is None and self.num_source else self.ended_at

    def num_decoded(self, num_tokens: int) -> int:
        """How many of the sequence's first `num_tokens` tokens the decoder reads itself: all of them, or in an
        encoder-decoder those after the source. Rows, pages and rules of the decoder's own layers count these."""
        return max(0, num_tokens - self.num_source)

    def num_own(self, layer_index: int, num_tokens: int) -> int:
        """How many of the first `num_tokens` tokens have rows in this layer: all of them, or in an encoder-decoder the
        source's (cross layer) or the decoder's (own layer)."""
        if not isinstance(self.model_cache, SourceCache):
            return num_tokens
        is_cross = layer_index >= len(self.layers) // 2
        return min(num_tokens, self.num_source) if is_cross else self.num_decoded(num_tokens)

    def new_row_offsets(self, first_position: int) -> dict[int, int]:
        """For each cross layer, the index 0 among the rows from `first_position` on at which its rows begin. Empty
        where there is no encoder, or where `first_position` is after the source: then cross layers got no new rows."""
        if not isinstance(self.model_cache, SourceCache) or first_position >= self.num_source:
            return {}
        return dict.fromkeys(range(len(self.layers) // 2, len(self.layers)), 0)

    def _build(self) -> Any:
        """An empty cache for the model: the layers of this cache mode, and in an encoder-decoder a cross layer for
        each."""
        made = self._build_own()
        return SourceCache(made, self.num_source) if self._has_encoder else made

    def _build_own(self) -> Any:
        return new_cache(self.spec, self._config, self.capacity)

    def _set_model_cache(self, model_cache: Any) -> None:
        self.model_cache = model_cache
        self.layers: list[LayerHandle] = handles_of(model_cache)
        if not self.spec.recomputes:
            self._deltas.clear()  # they describe layers that are no longer in use

    def clear(self) -> None:
        """Drop all rows and edits: the cache is as new."""
        self.lost = LostRows()
        self._set_model_cache(self._build())
        self.num_tokens, self.by_hand, self.ended_at = 0, UNTOUCHED, None

    def close(self) -> None:
        """Release what is shared with other sequences; the sequence is removed."""

    def forget_past(self) -> None:
        """Drop the log of lost rows: from now on nothing before the present can be restored from it."""
        self.lost.forget(self.num_decoded(self.num_tokens))

    # ---- one step ----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def begin(self, num_new: int) -> None:
        """Make room for `num_new` rows, or raise and leave everything as it was."""
        if self.spec.recomputes:
            self._scratch_before = self.model_cache
            self._set_model_cache(self._build())
            if isinstance(self.model_cache, SourceCache):
                # every step recomputes K and V, but the encoder runs only once
                self.model_cache.encoded = self._scratch_before.encoded
        elif self._needs_backup:
            self._backup = self.num_tokens, dict(enumerate(self._copied_layers(self.model_cache).layers))
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
        """Announce that the next forward computes `num_new` tokens of this sequence alone; paged layouts map pages for
        it."""

    def probe(self, observe: bool) -> Probe | None:
        """What a forward must record of attention: the newest query's weights if `observe`, and more where an eviction
        rule needs it."""
        wanted = self.rule.probe() if self.rule else None
        return wanted or (Probe() if observe else None)

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
        if isinstance(self.model_cache, SourceCache) and not self.spec.recomputes:
            self.model_cache.encoded = None  # the cross layers have computed their K and V from it
        self.num_tokens = num_tokens
        self._deltas.append((before, num_tokens, deltas))
        return deltas

    def take_encoder_s(self) -> float:
        """Seconds that the encoder took in the latest forward, 0 where none ran; a second call returns 0."""
        if not isinstance(self.model_cache, SourceCache):
            return 0.0
        took, self.model_cache.encoder_s = self.model_cache.encoder_s, 0.0
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
            self._restore_backup(self._backup[1])
            self.num_tokens = num_tokens
            return True
        if self._needs_backup and self._backup is None and num_tokens == self.num_tokens:
            return True  # no forward has begun
        if not self.by_hand.knows(num_tokens) or not all(layer.can_crop(num_tokens) for layer in self.layers):
            return False
        self.num_restored = sum(layer.crop(num_tokens) for layer in self.layers)
        self._note_back(num_tokens)
        return True

    def _note_back(self, num_tokens: int) -> None:
        """Note that all layers went back to the first `num_tokens` tokens."""
        self.lost.back_to(self.num_decoded(num_tokens))
        self.num_tokens, self.by_hand = num_tokens, self.by_hand.back_to(num_tokens)
        if self.ended_at is not None and num_tokens < self.ended_at:
            self.ended_at = None
        self._deltas.clear()

    def _restore_backup(self, layers: Mapping[int, Any]) -> None:
        self.model_cache.layers = [layers.get(index, layer) for index, layer in enumerate(self.model_cache.layers)]
        self._set_model_cache(self.model_cache)
        self._backup = None

    def _crop_scratch(self, num_tokens: int) -> bool:
        """Replace the scratch cache of a failed step by that of the step before it."""
        scratch = self._scratch_before or self.model_cache
        if not all(layer.knows(num_tokens) for layer in handles_of(scratch)):
            return False  # its sliding windows have moved past `num_tokens`
        self._set_model_cache(scratch)
        self.num_tokens, self._scratch_before = num_tokens, None
        self._deltas.clear()
        return True

    @property
    def keeps_all_rows(self) -> bool:
        """Whether every layer holds every row, so that a cache in another layout can be filled from this one."""
        return all(layer.keeps_all_rows for layer in self.layers)

    @torch.inference_mode()
    def _copied_layers(self, model_cache: Any, memo: dict[int, Any] | None = None) -> Any:
        made, memo = self._build(), {} if memo is None else memo
        made.layers = [copy.deepcopy(layer, memo) for layer in model_cache.layers]
        return made

    # ---- what is read ------------------------------------------------------------------------------------------------

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

    @torch.inference_mode()
    def rows_at(
        self, layer_index: int, num_tokens: int | None = None, first_position: int | None = None
    ) -> HeldRows | None:
        """The rows of a layer when the sequence had `num_tokens` tokens (None: now); rows of later tokens may follow
        them. With `first_position` only those from there on, none of which has been evicted yet; None where the layer
        has none of them."""
        if layer_index >= len(self.layers):
            return None
        return self.layers[layer_index].rows_at(num_tokens, first_position)

    def all_newest_rows(self, first_position: int) -> dict[int, Pair]:
        """The rows from a position on of every layer that has any: keys `[H_kv, T, D_k]`, values `[H_kv, T, D_v]`,
        views where they are stored exactly."""
        keys, values = (stacked_rows(self.layers, part, first_position) for part in PARTS)
        if keys is not None and values is not None:
            return dict(enumerate(zip(keys.unbind(), values.unbind(), strict=True)))
        found = ((index, layer.rows_at(None, first_position)) for index, layer in enumerate(self.layers))
        return {index: (rows.keys[0], rows.values[0]) for index, rows in found if rows is not None}

    def together(self, part: Part, span: range, layers: Sequence[int], num_tokens: int | None = None) -> torch.Tensor:
        """K or V `[L, H_kv, T, D]` of the rows at the positions of `span`, of layers that hold rows of one form: a view
        where they are evenly spaced in one storage. With `num_tokens` as they were then, of layers with `num_final`
        rows then."""
        handles = [self.layers[index] for index in layers]
        if len(handles) > 1 and (found := stacked_rows(handles, part, span.start)) is not None:
            return found.narrow(2, 0, len(span))
        rows = [layer.newest(part, span.start, num_tokens) for layer in handles]
        rows = [each if each.shape[1] == len(span) else each.narrow(1, 0, len(span)) for each in rows]
        return stacked_view(on_one_device(rows))

    @torch.inference_mode()
    def states(self, layer_index: int) -> tuple[StateMatrix, ...]:
        """The recurrent state that a layer keeps now, beside rows or instead of them; empty where it has none."""
        return self.layers[layer_index].states() if layer_index < len(self.layers) else ()

    def positions(self, layer_index: int) -> torch.Tensor | None:
        """Positions `[H_kv, S]` of the rows that a layer holds; None where they are consecutive."""
        return self.layers[layer_index].row_positions() if layer_index < len(self.layers) else None

    def scattered(self) -> dict[int, torch.Tensor]:
        """`positions` of every layer whose rows are not consecutive."""
        layers = enumerate(self.layers)
        return {index: positions for index, layer in layers if (positions := layer.row_positions()) is not None}

    @property
    def lost_bytes(self) -> int:
        """Bytes kept only in order to go back."""
        return self.lost.num_bytes

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
        return sum([layer.held_bytes().stored for layer in self.layers])

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

    def num_final(self, part: Part, num_tokens: int) -> list[int]:
        """For each layer, how many of the rows that it held at `num_tokens` tokens, for which `knows` must hold, no
        later step has overwritten or will, from position 0 on; 0 where any of them was dropped since. Nothing where
        every step computes all rows again."""
        return [] if self.spec.recomputes else [layer.num_final(part, num_tokens) for layer in self.layers]

    # ---- edits by hand -----------------------------------------------------------------------------------------------

    def why_no_edit(self) -> str:
        """The reason why no row can be edited in this cache; empty where rows can be edited."""
        return "keeps nothing between steps, so there are no rows to edit" if self.spec.recomputes else ""

    @torch.inference_mode()
    def write_rows(self, writes: Sequence[RowWrite]) -> None:
        """Overwrite held rows with other numbers, encoded as each layer encodes its own rows. All that can fail runs
        before anything is written."""
        self.prepare_write(writes)
        for write in writes:
            self.layers[write.layer].write_rows(write.part, write.heads, write.slots, write.numbers)
        self.note_edit(min(write.span.start for write in writes))

    def prepare_write(self, writes: Sequence[RowWrite]) -> None:
        """Do what can fail before rows are overwritten; here there is nothing."""

    def drop_rows(self, spans: Mapping[int, torch.Tensor]) -> None:
        """Drop the rows at `positions` `[H_kv, E]` of each layer; raises `InputError` where this cache cannot drop
        rows."""
        raise InputError(
            "This cache keeps every row of every layer, so none can be dropped: mask the rows, or take a cache "
            "with an eviction rule, or one in pages."
        )

    def check_are_decoded(self, layers: Iterable[int]) -> None:
        """Raise `InputError` if any of these layers is a cross layer, whose rows cannot be dropped."""
        if any(isinstance(self.model_cache.layers[index], CrossLayer) for index in layers):
            raise InputError(
                "Rows of what the encoder read are written once and in one run, so none can be dropped: mask the rows."
            )

    def check_pinned(self, pinned: RowMarks) -> None:
        """Raise `InputError` if these rows cannot be pinned, that is, kept from eviction."""
        raise InputError("This cache keeps every row, so none needs a pin: take one with an eviction rule.")

    def note_edit(self, first_position: int) -> None:
        """Note an edit that changed rows from `first_position` on: states with more tokens than that and fewer than now
        can no longer be restored."""
        self.by_hand = self.by_hand.edited(self.num_tokens, first_position)
        self._deltas.clear()

    def mark_rows(self, first_position: int, marked: ByHand) -> None:
        """Hide rows from attention or pin them from now on, as `marked` says."""
        self.by_hand = marked
        self.note_edit(first_position)

    @property
    def needs_own_forward(self) -> bool:
        """Whether this sequence needs a forward of its own, because rows are hidden from its attention."""
        return bool(self.by_hand.hidden)

    def held_positions(self, layer_index: int) -> torch.Tensor:
        """Positions `[H_kv, S]` of the rows that a layer held before the current forward, if one is running; `[1, S]`
        if all heads hold the same."""
        layer, scattered = self.layers[layer_index], self.positions(layer_index)
        if scattered is not None:
            return scattered[:, : int((scattered[0] < self.num_tokens).sum())]
        return torch.arange(layer.first_position(), self.num_tokens)[None]

    def hidden_rows(self) -> dict[int, torch.Tensor]:
        """For each layer, which of its held rows `[H_kv, S]` are hidden from attention; empty where no row is."""
        hidden = self.by_hand.hidden
        found: dict[int, torch.Tensor] = {}
        for layer, mask in hidden.layers.items():
            places = self.held_positions(layer)
            marked = hidden.at(layer, places.expand(mask.shape[0], -1))
            if marked is not None:
                found[layer] = marked
        return found

    # ---- what pages can do -------------------------------------------------------------------------------------------

    def admit(self, token_ids: Sequence[int], spare_pages: int, at_most: int | None = None) -> int:
        """Start with the rows of a known prefix of these tokens. Returns how many tokens were reused, at most
        `at_most`; contiguous layouts reuse none."""
        return 0

    def copy_from(self, other: SequenceCache) -> None:
        """Fill this cache, which is empty, with the rows of a cache of the same mode in another pool."""
        raise NotImplementedError("only pages lie in pools")

    def page_counts(self) -> PageCounts:
        """Pages held, shared and found by prefix, and why no more were reused; all zero outside paged layouts."""
        return PageCounts()

    def unshare_last_page(self) -> None:
        """Make the page of the last token safe to write, by a copy if other sequences share it; nothing outside paged
        layouts."""

    def set_owner(self, seq_id: int) -> None:
        """Note that this cache's pages belong to `seq_id`, or to a kept checkpoint; nothing outside paged layouts."""

    def page_ids_at(self, num_tokens: int) -> list[list[int]]:
        """For each page table, the pages in logical order when the sequence had `num_tokens` tokens; empty outside
        paged layouts."""
        return []

    def register_prefix(self, token_ids: Sequence[int]) -> None:
        """Register the full pages of these tokens so that other sequences find them; nothing outside paged layouts."""

    # ---- rows of another cache ---------------------------------------------------------------------------------------

    @torch.inference_mode()
    def fork_from(self, other: SequenceCache, num_tokens: int, *, as_itself: bool = False) -> bool:
        """Fill this cache with what another one of the same layout held at `num_tokens` tokens. Returns False, and
        leaves this cache empty, where that cannot be copied exactly. `as_itself`: it is the same sequence at an earlier
        step, and keeps its log of lost rows."""
        if self.spec.recomputes:
            # safe to share: every step recomputes into a new cache and never writes to this one
            self._set_model_cache(other.model_cache)
            self.num_tokens = other.num_tokens
        elif other.spec == self.spec and num_tokens == other.num_tokens and not other.keeps_all_rows:
            self.copy_layers(other)  # layers that cannot crop, or have evicted rows, are copied as they are
            self.num_tokens = num_tokens
        elif not self.convert_from(other):
            if other.spec != self.spec or not all(layer.can_crop(num_tokens) for layer in other.layers):
                return False
            self.copy_layers(other)
            self.num_tokens = other.num_tokens
        self.by_hand = other.by_hand
        return self._crop_fork(num_tokens)

    def _crop_fork(self, num_tokens: int) -> bool:
        is_done = num_tokens == self.num_tokens or self.crop(num_tokens)
        if not is_done:
            self.clear()
        return is_done

    @torch.inference_mode()
    def convert_from(self, other: SequenceCache) -> bool:
        """Fill this cache with the rows of another layout and with its edits by hand. Returns False, and does nothing,
        if they cannot be carried over exactly."""
        if self.spec.recomputes or other.spec.recomputes:
            return self.spec.recomputes
        if not all(layer.takes_rows for layer in self.layers) or not other.keeps_all_rows:
            return False
        self._append_rows_of(other)
        self.num_tokens, self.by_hand = other.num_tokens, other.by_hand
        return True

    def _append_rows_of(self, other: SequenceCache) -> None:
        """Append every layer's rows, as a forward would."""
        for index in range(len(other.layers)):
            rows = other.rows(index)
            if rows is not None and rows.keys.shape[2]:
                self.model_cache.update(rows.keys, rows.values, index)

    def copy_layers(self, other: SequenceCache) -> None:
        """Hold a copy of the layers of a cache with the same codec and eviction rule."""
        self.lost = other.lost.copy()
        self._set_model_cache(self._copied_layers(other.model_cache, {id(other.lost): self.lost}))

    # ---- storing and restoring -----------------------------------------------------------------------------------

    @torch.inference_mode()
    def stored(self, num_tokens: int) -> StoredCache:
        """What the cache keeps of the first `num_tokens` tokens, as views where possible; `knows(num_tokens)` must
        hold."""
        found = {index: layer.stored(num_tokens) for index, layer in enumerate(self.layers)}
        by_hand = self.by_hand.back_to(num_tokens)
        hidden, pinned = by_hand.hidden.layers, by_hand.pinned.layers
        layers = {
            index: replace(layer, hidden=hidden.get(index), pinned=pinned.get(index))
            for index, layer in found.items()
            if layer is not None
        }
        is_now, has_state = num_tokens == self.num_tokens, any(layer.has_state for layer in self.layers)
        states = [layer.stored_states() if is_now else {} for layer in self.layers]
        is_over = self.ended_at is not None and num_tokens >= self.ended_at
        return StoredCache(
            num_tokens,
            layers,
            self.ended_at if is_over else None,
            edited_from=by_hand.first_position,
            states={index: found for index, found in enumerate(states) if found},
            why_no_states="the states of then are not kept: go to that step" if has_state and not is_now else "",
        )

    @torch.inference_mode()
    def restore(self, stored: StoredCache) -> None:
        """Fill this cache, which is empty, with what `stored` returned for a cache of the same mode."""
        for index, layer in stored.layers.items():
            self.layers[index].restore(layer)
        for index, states in stored.states.items():
            self.layers[index].restore_states(states)
        self.num_tokens, self.ended_at = stored.num_tokens, stored.prompt_ended_at
        if self.rule is not None and self.rule.remembers:
            self.lost.memory_floor = self.num_decoded(self.num_tokens)
        if stored.edited_from is not None:
            hidden = {index: layer.hidden for index, layer in stored.layers.items() if layer.hidden is not None}
            pinned = {index: layer.pinned for index, layer in stored.layers.items() if layer.pinned is not None}
            edits = ((stored.num_tokens, stored.edited_from),)
            self.by_hand = ByHand(RowMarks(hidden), RowMarks(pinned), edits)
