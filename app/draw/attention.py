"""The newest row of attention: the weights of the last token's query, one row per query head, grouped by kv head."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from msgspec import Struct

from app.draw.colormap import Floats, Indices, magnitude_index
from app.draw.matrix import MatrixCell, is_map, matrix_of
from engine.spec.edit import Rows
from engine.spec.lenses import LENSES
from engine.wire.pictures import AttentionPicture
from engine.wire.records import AttentionSummary

LOG, PER_HEAD, LINEAR = "log", "head", "linear"
LEAST_SHARE = 0.05  # of an even weight 1/(number of positions): smaller weights have the scale's lowest colour
SINK_SHARE, SINK_TIMES = 0.25, 3  # a sink takes a quarter of the mass, and three times an even share of it
FIRST, RECENT = 4, 16  # sinks are among the first tokens, or older than the latest, which are near the query


class HeadMass(Struct, frozen=True):
    """A query head's attention mass on position 0 and on the last 16 positions."""

    head: int
    first: float
    recent: float


class PositionWeight(Struct, frozen=True):
    """A position and its attention weight."""

    position: int
    weight: float


def is_weights(picture: AttentionPicture) -> bool:
    """Whether its numbers are weights between 0 and 1, of which each query has one to share out."""
    return LENSES[picture.request.lens].name in ("attention", "attention-map")


def largest(picture: AttentionPicture) -> float:
    """What the colours reach to: 1 for weights, else the largest number; 1 where there is none."""
    if is_weights(picture):
        return 1.0
    known = picture.weights[np.isfinite(picture.weights)]
    return float(known.max(initial=0.0)) or 1.0


def attention_indices(picture: AttentionPicture, scale: str) -> Indices:
    """`[rows, columns]` of colour indices: by the number's logarithm above `LEAST_SHARE` (`LOG`), relative to the
    row's largest one behind the first token (`PER_HEAD`), or by the number itself (`LINEAR`). Numbers that are no
    weights are taken as shares of the largest."""
    weights = matrix_of(picture).shown
    if scale != PER_HEAD:
        weights = weights / np.float32(largest(picture))
    if scale == LOG:
        least = np.float32(LEAST_SHARE / (picture.query_position + 1))
        weights = (1 - np.log10(np.maximum(weights, least)) / np.log10(least)).astype(np.float32)
    elif scale == PER_HEAD:
        weights = weights / head_limits(picture)[:, None]
    return magnitude_index(np.ascontiguousarray(weights, dtype=np.float32), 1.0)


def head_limits(picture: AttentionPicture) -> Floats:
    """`[H]`: the largest weight behind the first token, which often takes half of the mass as a sink; of the whole row,
    so that zooming changes no colour. 1 for a head that has none, and for each row of a lens without them the
    largest."""
    if picture.top_positions is None or picture.top_weights is None or not picture.top_weights.size:
        return np.full(picture.weights.shape[0], largest(picture), np.float32)
    behind = np.where(picture.top_positions > 0, picture.top_weights, 0)
    most: Floats = np.nan_to_num(behind).max(1).astype(np.float32)
    most[most <= 0] = 1
    return most


def top_positions(picture: AttentionPicture, head: int) -> tuple[PositionWeight, ...]:
    """The positions with a head's largest weights, largest first; fewer if the head has fewer rows. Of sums, the
    mean weights of the queries."""
    if picture.top_positions is None or picture.top_weights is None or not 0 <= head < len(picture.top_positions):
        return ()
    pairs = zip(picture.top_positions[head], picture.top_weights[head], strict=True)
    count = 1 if is_weights(picture) else max(1, picture.query_position + 1 - picture.first_query)
    return tuple(PositionWeight(int(position), float(weight) / count) for position, weight in pairs if weight == weight)


@lru_cache(maxsize=4)
def sinks(picture: AttentionPicture) -> tuple[PositionWeight, ...]:
    """Positions that take a quarter of the mass or more in the mean of the layer's heads, and much more than each of so
    few tokens would if all took the same. A token near the query is none: heads look at it because it is near."""
    if (
        picture.request.lens != "attention"
        or picture.top_positions is None
        or picture.top_weights is None
        or not picture.top_weights.size
    ):
        return ()
    places, where = np.unique(picture.top_positions, return_inverse=True)
    mass = np.bincount(where.reshape(-1), np.nan_to_num(picture.top_weights).reshape(-1)) / len(picture.top_positions)
    query = picture.query_position
    least = max(SINK_SHARE, SINK_TIMES / (query + 1))
    return tuple(
        PositionWeight(int(place), float(mean))
        for place, mean in zip(places, mass, strict=True)
        if mean >= least and place != query and (place < FIRST or place <= query - RECENT)
    )


def kv_head_of(head: int, group_size: int) -> int:
    return head // max(1, group_size)


def rows_between(picture: AttentionPicture, first: MatrixCell, last: MatrixCell) -> Rows:
    """The rows between two cells, both included: those of the kv heads that their query heads read."""
    low, high = sorted(kv_head_of(cell.place.head, picture.group_size) for cell in (first, last))
    is_all = low == 0 and high == kv_head_of(picture.weights.shape[0] - 1, picture.group_size) and not is_map(picture)
    heads = None if is_all else tuple(range(low, high + 1))
    return Rows(min(first.first, last.first), max(first.last, last.last) + 1, (picture.request.layer,), heads)


def masses(summary: AttentionSummary, layer: int, entropy: Floats | None) -> tuple[HeadMass, ...]:
    """The masses of every head of a layer, given its entropies `[H]`; empty if the layer was not measured."""
    if layer not in summary.layers:
        return ()
    index = summary.layers.index(layer)
    first, recent = summary.first_mass[index], summary.recent_mass[index]
    if entropy is None or len(entropy) != len(first):
        return ()
    return tuple(HeadMass(head, float(first[head]), float(recent[head])) for head in range(len(first)))


def received(picture: AttentionPicture, position: int) -> Floats | None:
    """The weights `[H]` that the newest query gave one position, NaN in heads that had evicted it; None if the position
    is pooled with others or outside the picture, or the picture is of other queries."""
    matrix = matrix_of(picture)
    if picture.request.lens != "attention" or matrix.span_of(position) is None or matrix.per_column > 1:
        return None
    return matrix.low[:, position - matrix.start]
