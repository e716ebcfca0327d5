"""Rows hidden from attention, rows kept from being dropped, and rows dropped."""

from __future__ import annotations

import torch

from engine.cache.by_hand import RowMarks
from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.model.loader import LoadedModel
from engine.session.edits.places import heads_of, layers_named, places_in
from engine.spec.edit import Drop, Mask, Pin


def hide(model: LoadedModel, cache: SequenceCache, edit: Mask) -> None:
    """Hide rows from every later query, or show them again."""
    if not model.info.captures_attention:
        raise InputError(
            "This architecture has attention code of its own, which takes no mask from here: zero the values instead."
        )
    hidden = marked(cache, model.info.geometry, cache.by_hand.hidden, edit, edit.hidden)
    cache.mark_rows(edit.rows.start, hidden=hidden)


def pin(model: LoadedModel, cache: SequenceCache, edit: Pin) -> None:
    """Keep rows from being dropped by the cache's rule, or let them be."""
    pinned = marked(cache, model.info.geometry, cache.by_hand.pinned, edit, edit.pinned)
    cache.check_pinned(pinned)
    cache.mark_rows(edit.rows.start, pinned=pinned)


def drop(model: LoadedModel, cache: SequenceCache, edit: Drop) -> None:
    """Drop rows as the cache's rule would."""
    spans: dict[int, torch.Tensor] = {}
    for layer in layers_named(cache, model.info.geometry, edit.rows):
        places_in(cache, layer, edit.rows)
        span = torch.arange(edit.rows.start, edit.rows.stop)
        spans[layer.index] = span.expand(len(heads_of(edit.rows, layer)), -1)
    cache.drop_rows(spans)


def marked(
    cache: SequenceCache, geometry: CacheGeometry, marks: RowMarks, edit: Mask | Pin, is_marked: bool
) -> RowMarks:
    """The marks with those of an edit; raises `InputError` where a row is not held."""
    span = range(edit.rows.start, edit.rows.stop)
    for layer in layers_named(cache, geometry, edit.rows):
        if is_marked:
            places_in(cache, layer, edit.rows)
        marks = marks.marking(layer.index, layer.num_kv_heads, heads_of(edit.rows, layer), span, is_marked)
    return marks
