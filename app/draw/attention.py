"""The newest row: where the last token looked, every query head a row, heads of one kv head together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.draw.colormap import Floats, Indices, magnitude_index
from app.draw.ghost import Flags, Ghosts, shares
from engine.records import AttentionSlice, AttentionSummary


@dataclass(frozen=True)
class HeadMass:
    """Of one query head: mass on position 0, on the last 16 positions, entropy in nats."""

    head: int
    first: float
    recent: float
    entropy: float


def attention_indices(piece: AttentionSlice, root: bool) -> Indices:
    """`[H, columns]`; with `root`, colour follows the square root, so that a heavy first token hides nobody."""
    weights = np.where(gone(piece), 0, piece.weights)
    shown = np.sqrt(np.maximum(weights, 0)) if root else weights
    return magnitude_index(np.ascontiguousarray(shown, dtype=np.float32), 1.0)


def ghosts_of(piece: AttentionSlice) -> Ghosts | None:
    """Which rows were not there for the query to look at, head by head; None where all were."""
    if piece.absent is None or not piece.absent.any():
        return None
    start, stop = extent(piece)
    return Ghosts(shares(piece.absent, piece.tokens_per_column, stop - start), start, piece.tokens_per_column)


def gone(piece: AttentionSlice) -> Flags:
    """`[H, columns]`: cells of which no row was left."""
    found = ghosts_of(piece)
    return np.zeros(piece.weights.shape, dtype=np.bool_) if found is None else found.share >= 1


def group_borders(num_heads: int, group_size: int) -> tuple[int, ...]:
    """The rows at which another kv head's group begins."""
    return tuple(range(group_size, num_heads, group_size)) if group_size > 1 else ()


def kv_head_of(head: int, group_size: int) -> int:
    return head // max(1, group_size)


def extent(piece: AttentionSlice) -> tuple[int, int]:
    """The positions `start … stop` that the query could look at."""
    if not piece.positions.size:
        return 0, 0
    start = int(piece.positions[0])
    return start, min(start + piece.positions.size * piece.tokens_per_column, piece.query_position + 1)


def span_of(piece: AttentionSlice, position: int) -> tuple[int, int] | None:
    """The positions `start … stop` of the column that holds a position."""
    start, stop = extent(piece)
    if not start <= position < stop:
        return None
    first = start + (position - start) // piece.tokens_per_column * piece.tokens_per_column
    return first, min(first + piece.tokens_per_column, stop)


def weight_at(piece: AttentionSlice, position: float, head: float) -> tuple[int, int, int, float] | None:
    """`(head, first position, last position, weight)` under a point in positions and heads."""
    span = span_of(piece, int(position // 1))
    row = int(head // 1)
    if span is None or not 0 <= row < piece.weights.shape[0]:
        return None
    column = (span[0] - int(piece.positions[0])) // piece.tokens_per_column
    return row, span[0], span[1] - 1, float(piece.weights[row, column])


def masses(summary: AttentionSummary, layer: int) -> tuple[HeadMass, ...]:
    """Every head of a layer; empty where the layer was not measured."""
    if layer not in summary.layers:
        return ()
    index = summary.layers.index(layer)
    columns = (summary.first_mass[index], summary.recent_mass[index], summary.entropy[index])
    return tuple(HeadMass(head, *(float(column[head]) for column in columns)) for head in range(len(columns[0])))


def received(piece: AttentionSlice, position: int) -> Floats | None:
    """The weights `[H]` that the newest query gave one position, NaN in heads that had dropped it; None where it is
    pooled with others or absent."""
    span = span_of(piece, position)
    if span is None or piece.tokens_per_column > 1:
        return None
    return piece.weights[:, span[0] - int(piece.positions[0])]
