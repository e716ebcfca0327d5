"""Slices of the difference of two runs."""

from __future__ import annotations

import operator
import time

import numpy as np
import torch

from engine.analysis.duel.compare import aligned
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.look.drawn_wall import next_wall
from engine.look.magnitudes import SessionMagnitudes
from engine.look.reductions import absent_of, missing_rows, ms_since, num_positions_of
from engine.look.rows_at import RowsAt
from engine.look.slices import head_slice, held_columns, row_slice
from engine.wire.arrays import read_only_floats, read_only_ints
from engine.wire.requests import (
    AttentionRequest,
    HeadRequest,
    RowRequest,
    SliceRequest,
    WallRequest,
)
from engine.wire.slices import AttentionSlice, Slice


class PicturesOfRows:
    """Takes slices of rows that no session holds, such as the difference A - B, which is computed before pooling. What
    was counted for one step is used for the next, as in a session, until `rows_of` changes."""

    def __init__(self, geometry: CacheGeometry) -> None:
        self._geometry = geometry
        self._rows_of: tuple[object, ...] = ()
        self._counts = SessionMagnitudes()

    def take(self, request: SliceRequest, past: RowsAt, rows_of: tuple[object, ...]) -> Slice:
        """A slice of these rows; `rows_of` are the `ComparedRun.rows_of` of the sides that they are made from."""
        are_same = len(rows_of) == len(self._rows_of) and all(map(operator.is_, rows_of, self._rows_of))
        if not are_same:
            self._rows_of, self._counts = rows_of, SessionMagnitudes()
        return picture_of(request, past, self._geometry, self._counts)


def picture_of(request: SliceRequest, past: RowsAt, geometry: CacheGeometry, counts: SessionMagnitudes) -> Slice:
    """A slice of these rows; `counts` are those of the steps that were shown before."""
    match request:
        case WallRequest(change=False):
            return next_wall(request, past, geometry, counts)
        case HeadRequest():
            return head_slice(request, past, geometry, counts.of_head(request, past))
        case RowRequest():
            return row_slice(request, past, geometry)
    raise InputError("Of a difference there are pictures of the wall, of a head, of a row and of attention.")


@torch.inference_mode()
def attention_difference(
    request: AttentionRequest,
    row: torch.Tensor | None,
    other: torch.Tensor | None,
    query_position: int,
    geometry: CacheGeometry,
) -> AttentionSlice:
    """The weights `[H, S]` of A minus those of B; each column shows the difference with the largest magnitude.
    Positions that a side had dropped have no difference and are counted in `absent`."""
    began = time.perf_counter()
    layer = geometry.layers[request.layer]
    weights, positions, per_column, note = np.empty((0, 0), np.float32), np.empty(0, np.int64), 1, ""
    absent = None
    if row is None or other is None:
        note = "The attention of that step is not kept on both sides."
    else:
        (row, base), (other, other_base) = (held_columns(weights, layer, query_position) for weights in (row, other))
        base = min(base, other_base)
        one, two = aligned(row, other)
        is_gone = missing_rows(one) | missing_rows(two)
        difference = (one.nan_to_num(0.0) - two.nan_to_num(0.0)).masked_fill(is_gone, 0.0)
        end = base + difference.shape[1]
        stop = end if request.stop is None else min(request.stop, end)
        first = min(max(request.start, base), max(base, stop - 1))
        per_column = max(1, -(-(stop - first) // max(1, request.max_columns)))
        shown = slice(first - base, stop - base)
        absent = absent_of(is_gone[:, shown], per_column)
        weights = farthest(difference[:, shown], per_column).numpy()
        if absent is not None:
            weights[absent == num_positions_of(np.arange(weights.shape[1]), per_column, stop - first)[None]] = np.nan
        positions = first + np.arange(weights.shape[1]) * per_column
    return AttentionSlice(
        request=request,
        provenance="difference",
        weights=read_only_floats(weights),
        positions=read_only_ints(positions),
        tokens_per_column=per_column,
        group_size=max(1, layer.num_heads // max(1, layer.num_kv_heads)),
        query_position=query_position,
        note=note,
        took_ms=ms_since(began),
        absent=absent,
    )


def farthest(row: torch.Tensor, per_column: int) -> torch.Tensor:
    """The number with the largest magnitude in each column of `[H, S]`, with its sign."""
    padded = torch.nn.functional.pad(row, (0, -row.shape[1] % per_column)).reshape(len(row), -1, per_column)
    return padded.gather(2, padded.abs().argmax(2, keepdim=True))[..., 0]
