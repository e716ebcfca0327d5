"""Replaces tokens in the middle of a sequence: writes only their K and V, or re-prefills everything from there on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from engine.cache.by_hand import RowWrite
from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.geometry.dimensions import LayerGeometry
from engine.model.loader import LoadedModel
from engine.session.chunks import PrefillPlan
from engine.session.driver import Driver, lengths_to_feed
from engine.session.edits.numbers import places_in
from engine.session.edits.scratch import Scratch, layer_without
from engine.session.live import LiveSequence
from engine.session.mode import CacheMode
from engine.spec.edit import ReplaceTokens, Rows
from engine.wire.changes import EditMade
from engine.wire.measurements import KeptRows
from engine.wire.records import read_only_floats


def overwrite(model: LoadedModel, live: LiveSequence, edit: ReplaceTokens) -> KeptRows | None:
    """Replace tokens and write only their own K and V, computed after the tokens before them. Returns how far the later
    rows, which stay, are from those that a re-prefill would give; None if there are no later rows."""
    cache, sequence, start, stop = live.cache, live.sequence, edit.position, edit.stop
    if any(layer.has_state for layer in cache.layers):
        raise InputError("A recurrent state has read these tokens and moved on: re-prefill what follows instead.")
    if cache.num_source:
        raise InputError("Every row of a source depends on all of it: re-prefill what follows instead.")
    if (lacking := layer_without(model, cache, start)) is not None:
        raise InputError(
            f"The window of layer {lacking} has left rows behind that position {start} reads, so its K and V cannot be "
            "computed alone: re-prefill what follows instead."
        )
    scratch = Scratch(model, cache, start, keeps=True)
    scratch.feed(edit.token_ids)
    writes = []
    for layer in model.info.geometry.attention_layers:
        places = places_in(cache, layer, Rows(start, stop))
        keys, values = scratch.rows_from(layer.index, start)
        span = range(start, stop)
        writes += [
            RowWrite(layer.index, "keys", places.heads, places.slots, keys.clone(), span),
            RowWrite(layer.index, "values", places.heads, places.slots, values.clone(), span),
        ]
    kept = None
    if stop < cache.num_tokens:
        scratch.feed(sequence.token_ids[stop : cache.num_tokens])
        kept = distances(cache, model.info.geometry.attention_layers, scratch, stop)
    cache.write_rows(writes)
    live.sequence = sequence.apply(EditMade(edit))
    return kept


def distances(cache: SequenceCache, layers: tuple[LayerGeometry, ...], scratch: Scratch, first: int) -> KeptRows:
    """The relative distance of each row from position `first` on from the recomputed one: the norm of the difference
    over the norm of the recomputed row, both over all heads. NaN where a row is not held."""
    found: dict[str, list[np.ndarray]] = {"keys": [], "values": []}
    for layer in layers:
        held = cache.rows(layer.index)
        assert held is not None, "rows were found before"
        positions = cache.held_positions(layer.index).expand(held.keys.shape[1], -1)
        count = scratch.num_tokens_of(layer.index) - first
        for name, old, new in zip(found, (held.keys, held.values), scratch.rows_from(layer.index, first), strict=True):
            wanted = torch.full((*positions.shape[:1], count, new.shape[2]), torch.nan)
            for head, places in enumerate(positions):
                is_later = places >= first
                wanted[head, (places[is_later] - first).cpu()] = old[0, head, is_later].float().cpu()
            difference = (wanted - new.float().cpu()).square().sum((0, 2)).sqrt()
            found[name].append((difference / new.float().cpu().square().sum((0, 2)).sqrt()).numpy())
    keys, values = (read_only_floats(np.stack(found[name]).astype(np.float32)) for name in ("keys", "values"))
    return KeptRows(tuple(layer.index for layer in layers), first, keys, values)


def re_prefill(
    model: LoadedModel, mode: CacheMode, live: LiveSequence, edit: ReplaceTokens, check: Callable[[], None] | None
) -> torch.Tensor:
    """Replace tokens and compute all rows from there on again; returns the newest logits `[V]`."""
    cache, sequence = live.cache, live.sequence
    if sequence.is_prefilling:
        raise InputError("The prompt is still being read: let it end, then put other tokens in.")
    start = edit.position
    edited = sequence.apply(EditMade(edit))
    token_ids, num_prompt = edited.token_ids, edited.num_prompt_tokens
    check_source(cache, edit, num_prompt)
    mode.check_holds(live.seq_id, edited, cache, "put fewer in")
    num_kept = keep_first(cache, start)
    if cache.num_source and not num_kept:
        cache.num_source = num_prompt - 1
        cache.clear()
    driver = Driver(model, cache, num_prompt, token_ids[:num_kept])
    fed = list(PrefillPlan.of(model).lengths(len(token_ids)))
    if cache.num_source:  # the encoder reads its source in one forward
        fed = [num_prompt, *(length for length in fed if length > num_prompt)]
    logits = None
    for logits in driver.run(token_ids, lengths_to_feed(cache.spec, num_prompt, fed, len(token_ids)), check):  # noqa: B007
        pass
    if logits is None:  # no token was inserted, and none follows
        raise InputError("Nothing follows what was taken out: go back to the step before it instead.")
    live.sequence = edited
    cache.by_hand = cache.by_hand.edited(len(token_ids), start)
    return logits.clone()


def check_source(cache: SequenceCache, edit: ReplaceTokens, num_prompt: int) -> None:
    """Raise `InputError` for an edit that leaves the encoder without tokens, or that spans the source and the token
    that the decoder starts from."""
    source, stop = cache.num_source, edit.stop
    if not source or edit.position > source:
        return
    if edit.position < source < stop or (edit.position == source and (len(edit.token_ids), stop) != (1, source + 1)):
        raise InputError(
            f"Position {source} is the token that the decoder starts from: replace it by one other, and the source "
            "before it apart."
        )
    if num_prompt < 2:
        raise InputError("An encoder needs a token to read: leave one.")


def keep_first(cache: SequenceCache, count: int) -> int:
    """Crop a cache to its first `count` rows, or clear it where it no longer holds all of these; the number of rows
    left. Raises `InputError` where rows edited by hand would be lost."""
    is_lost = not cache.spec.recomputes  # a recomputing layout has no edited rows, only edited tokens
    edits = is_lost and [first for _, first in cache.by_hand.edits if first < count]
    if cache.spec.is_append_only and not cache.spec.recomputes:
        cache.by_hand = cache.by_hand.clamped(count)
    if count and cache.crop(count):
        return count
    if edits:
        raise InputError(
            "Rows before these tokens were edited by hand, and this cache cannot compute what follows without losing "
            "that: undo that edit first, or overwrite the tokens alone."
        )
    cache.clear()
    return 0
