"""The colour range of each layer of the wall, its largest value, and which thumbnails have values far beyond it."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from app.draw.colormap import Floats
from app.draw.format import brief, decimal, times
from app.draw.ghost import Flags
from engine.spec.lenses import LENSES
from engine.wire.pictures import WallPicture

Tiles = frozenset[tuple[int, int]]  # (layer, kv head)

FAR = 2.5  # multiple of the range: none of millions of normally distributed numbers is that large


def is_signed(picture: WallPicture) -> bool:
    """Whether the numbers of a picture may be below zero."""
    return picture.request.change or LENSES[picture.request.lens].is_signed


def layer_limits(picture: WallPicture) -> Floats:
    """`[L]`: the colour range of each layer, which the engine computes from all of its rows; 1 where all are zero. It
    does not depend on the cells, whose number changes with the panel's size."""
    if picture.magnitudes is None:
        return np.ones(len(picture.layers), np.float32)
    limits = picture.magnitudes.limit
    return np.where(limits > 0, limits, np.float32(1))


def times_range(picture: WallPicture) -> dict[int, float]:
    """For each layer, its largest magnitude as a multiple of its colour range; without layers where all are zero."""
    if picture.magnitudes is None:
        return {}
    ratios = picture.magnitudes.largest / layer_limits(picture)
    return {layer: float(ratio) for layer, ratio in zip(picture.layers, ratios, strict=True) if ratio > 0}


def farthest(picture: WallPicture) -> tuple[int, str, float] | None:
    """(layer, `K` or `V`, multiple of its range) of the value that is largest relative to its layer's range, of both
    tensors; None if there are no rows, or all are zero."""
    drawn, other = LENSES[picture.request.lens].label, "V" if picture.request.lens == "keys" else "K"
    found: list[tuple[int, str, float]] = []
    for name, magnitudes in ((drawn, picture.magnitudes), (other, picture.other_magnitudes)):
        ratios = times_range(replace(picture, magnitudes=magnitudes))
        found += [(layer, name, ratio) for layer, ratio in ratios.items()]
    return max(found, key=lambda one: one[2]) if found else None


def magnitude_words(picture: WallPicture, layer: int) -> str:
    """`max |K| 8.6 · 4.1× the range ±2.1 · 0.50 % of the layer beyond it`; empty for a layer without rows."""
    if picture.magnitudes is None or layer not in picture.layers:
        return ""
    index = picture.layers.index(layer)
    largest, limit = float(picture.magnitudes.largest[index]), float(layer_limits(picture)[index])
    name = LENSES[picture.request.lens].label.strip("|")
    if not largest:
        return f"no finite {name} other than zero"
    beyond = decimal(100 * float(picture.magnitudes.clipped[index]))
    of, reach = (f"|{name}|", "±") if is_signed(picture) else (LENSES[picture.request.lens].label, "0–")
    size = f"max {of} {brief(largest)} · {times(largest / limit)} the range {reach}{brief(limit)}"
    return f"{size} · {beyond} % of the layer beyond it"


def marked_tiles(picture: WallPicture, values: Floats, absent: Flags) -> tuple[Tiles, Tiles]:
    """The thumbnails with NaN or Inf, and those with a value far beyond the range, as (layer, kv head). Pooling keeps
    extremes, so none is missed."""
    held = np.where(absent, np.float32(0), values) if absent.any() else values
    highest, lowest = held.max(axis=(2, 3), initial=0), held.min(axis=(2, 3), initial=0)
    sizes = np.maximum(highest, -lowest)  # NaN if the thumbnail has one
    return _tiles(picture, ~np.isfinite(sizes)), _tiles(picture, sizes > FAR * layer_limits(picture)[:, None])


def _tiles(picture: WallPicture, is_marked: Flags) -> Tiles:
    return frozenset((picture.layers[i], int(head)) for i, head in np.argwhere(is_marked) if head < picture.heads[i])
