"""Screen-sized pictures (slices) of K, V or attention, now or at an earlier step, reduced on the device where the
tensors are.

A cell of a reduced picture keeps both its smallest and its largest value, so that a single outlier channel never
averages away; a NaN makes its cell NaN. A slice of an earlier step shows the rows as they were then; where the cache no
longer knows them, it shows what is stored now and says so.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from msgspec import structs

from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.look.probe import entropy_of
from engine.look.reductions import (
    absent_of,
    missing_rows,
    most_attended,
    ms_since,
    num_positions_of,
    per_cell,
    pooled,
    pooled_weights,
    scattered,
)
from engine.look.rows_at import RowsAt, RowSource, chosen, heads_without, row_at
from engine.look.states import is_now, landscape, state_of
from engine.look.tile_statistics import TileStatistics
from engine.wire.arrays import read_only_floats, read_only_ints
from engine.wire.records import Floats, Ints
from engine.wire.requests import (
    AttentionRequest,
    HeadRequest,
    RowRequest,
    SliceRequest,
    TableRequest,
    TensorName,
)
from engine.wire.slices import AttentionSlice, HeadSlice, Magnitudes, RowSlice, TableSlice


@dataclass(frozen=True, eq=False)
class Tile:
    """The rows `[S, D]` of one head from position `first` up to `stop`, at `positions` `[S]` where some were evicted.
    `has_rows` is False if the layer holds no rows."""

    values: torch.Tensor
    first: int
    stop: int
    positions: torch.Tensor | None = None
    dtype: str = ""
    has_rows: bool = True

    @classmethod
    def of(cls, request: HeadRequest, past: RowsAt) -> Tile:
        rows, stop = past.rows(request.layer), min(request.stop, request.num_tokens)
        if rows is None:
            return cls(torch.empty(0, 0), 0, stop, has_rows=False)
        tensor = chosen(rows, request.tensor)[0]
        dtype = str(tensor.dtype).removeprefix("torch.")
        first = max(rows.first, request.start)
        head = min(request.kv_head, tensor.shape[0] - 1)
        if rows.positions is None:
            return cls(
                tensor[head, first - rows.first : max(0, request.stop - rows.first)].float(), first, stop, None, dtype
            )
        is_shown = (rows.positions[head] >= first) & (rows.positions[head] < stop)
        return cls(tensor[head, is_shown].float(), first, stop, rows.positions[head, is_shown], dtype)

    @property
    def num_positions(self) -> int:
        return len(self.values) if self.positions is None else max(0, self.stop - self.first)


def head_slice(
    request: HeadRequest, past: RowsAt, geometry: CacheGeometry, magnitudes: Magnitudes | None = None
) -> HeadSlice:
    """The picture of one head over the requested tokens, with the numbers that a colour scale needs; `magnitudes` are
    those of its layer."""
    if geometry.layers[request.layer].kind == "linear" and (state := state_slice(request, past)) is not None:
        return state
    began = time.perf_counter()
    tile = Tile.of(request, past)
    per_column = per_cell(tile.num_positions, request.max_columns)
    absent = None
    if tile.positions is not None:
        count = tile.num_positions
        found = scattered(tile.values[None], tile.positions[None] - tile.first, count, per_column, 1)
        low, high = found.low, found.high
        absent = read_only_ints(num_positions_of(np.arange(low.shape[1]), per_column, count) - found.held[0])
    elif tile.values.numel():
        low, high, _ = pooled(tile.values[None], 0, per_column, 1)
    else:
        low = high = np.empty((1, 0, 0), np.float32)
    layer = geometry.layers[request.layer]
    group = max(1, layer.num_heads // max(1, layer.num_kv_heads))
    return HeadSlice(
        request=request,
        dtype=tile.dtype,
        low=read_only_floats(low[0]),
        high=read_only_floats(high[0]),
        positions=read_only_ints(tile.first + np.arange(low.shape[1]) * per_column),
        tokens_per_column=per_column,
        query_heads=tuple(range(request.kv_head * group, (request.kv_head + 1) * group)),
        tensor_label=tensor_label(layer.kind, request.tensor),
        note=missing_note(past, request.layer) or ("" if tile.has_rows else no_rows(layer.kind, is_now(past))),
        took_ms=ms_since(began),
        absent=absent,
        magnitudes=magnitudes,
        **numbers_of(TileStatistics(tile.values)),
        **provenance_of_head(past, request),
    )


def state_slice(request: HeadRequest, past: RowsAt) -> HeadSlice | None:
    """The picture of a part of a layer's recurrent state now, where `kv_head` counts the parts; None where there is
    none."""
    began, matrix = time.perf_counter(), state_of(past, request.layer, request.kv_head)
    if matrix is None:
        return None
    values = landscape(matrix.values)
    per_column = per_cell(values.shape[0], request.max_columns)
    low, high, _ = pooled(values[None], 0, per_column, 1)
    return HeadSlice(
        request=request,
        provenance=past.exact_provenance,
        dtype=str(matrix.values.dtype).removeprefix("torch."),
        low=read_only_floats(low[0]),
        high=read_only_floats(high[0]),
        positions=read_only_ints(np.arange(low.shape[1]) * per_column),
        tokens_per_column=per_column,
        query_heads=(),
        tensor_label=matrix.name,
        note="",
        took_ms=ms_since(began),
        state_shape=matrix.shape,
        **numbers_of(TileStatistics(values)),
    )


def provenance_of_head(past: RowsAt, request: HeadRequest) -> dict[str, Any]:
    """Where the rows of a head come from, as fields of its slice."""
    layer, tensor = request.layer, request.tensor
    return {
        "provenance": past.provenance_of((layer,), (tensor,), request.start),
        "exact_from": past.exact_from(layer, tensor),
    }


def numbers_of(statistics: TileStatistics) -> dict[str, Any]:
    """The statistics of a tile as fields of a head's slice."""
    return {
        "counts": read_only_ints(statistics.counts),
        "edges": read_only_floats(statistics.edges),
        "limit": statistics.limit,
        "lowest": statistics.lowest,
        "highest": statistics.highest,
        "num_nan": statistics.num_nan,
        "num_inf": statistics.num_inf,
    }


def attention_slice(
    request: AttentionRequest,
    row: torch.Tensor | None,
    query_position: int | None,
    geometry: CacheGeometry,
    newest: bool,
) -> AttentionSlice:
    """The newest query's weights `[H, S]` of one layer at one step, as they were computed. `query_position` is None if
    the sequence had no rows then, and so no query."""
    began = time.perf_counter()
    layer = geometry.layers[request.layer]
    group = max(1, layer.num_heads // max(1, layer.num_kv_heads))
    weights, positions, per_column, note = np.empty((0, 0), np.float32), np.empty(0, np.int64), 1, ""
    absent: Ints | None = None
    top_positions: Ints | None = None
    top_weights: Floats | None = None
    entropy: Floats | None = None
    if query_position is None:
        query_position, note = (
            0,
            f"The sequence held no rows after step {request.step}: it waited for room in the pool.",
        )
    elif row is None:
        gone = f"The attention of step {request.step} was not measured, or is no longer kept."
        note = gone if layer.num_heads else no_rows(layer.kind)
    else:
        row, base = held_columns(row, layer, query_position)
        end = base + row.shape[1]
        stop = end if request.stop is None else min(request.stop, end)
        first = min(max(request.start, base), max(base, stop - 1))
        per_column = max(1, -(-(stop - first) // max(1, request.max_columns)))
        held = row.float()
        shown = slice(first - base, stop - base)
        if bool(held.isnan().any()):
            is_gone = missing_rows(held)
            filled = held.masked_fill(is_gone, -1.0)
            absent = absent_of(is_gone[:, shown], per_column)
        else:
            filled = held
        weights = pooled_weights(filled[:, shown], per_column)
        positions = first + np.arange(weights.shape[1]) * per_column
        top_positions, top_weights = most_attended(filled, base)
        entropy = read_only_floats(entropy_of(held).cpu().numpy())
    return AttentionSlice(
        request=request,
        provenance="live cache" if newest else "recorded",
        weights=read_only_floats(weights),
        positions=read_only_ints(positions),
        tokens_per_column=per_column,
        group_size=group,
        query_position=query_position,
        note=note,
        took_ms=ms_since(began),
        absent=absent,
        top_positions=top_positions,
        top_weights=top_weights,
        entropy=entropy,
    )


def held_columns(row: torch.Tensor, layer: LayerGeometry, query_position: int) -> tuple[torch.Tensor, int]:
    """Weights `[H, S]` without the columns for which the layer has no rows, and the position of the first column: a
    cross layer has rows of the source only, any other layer up to the query."""
    if layer.kind == "cross":
        return row[:, : int((~row.isnan()).any(0).sum())], 0
    return row, query_position + 1 - row.shape[1]


def row_slice(request: RowRequest, past: RowsAt, geometry: CacheGeometry) -> RowSlice:
    """K and V of one position in all layers, exact."""
    began = time.perf_counter()
    layers, keys, values, dropped, dtype = [], [], [], [], ""
    for layer in geometry.attention_layers:
        rows = past.rows(layer.index)
        pair = None if rows is None else row_at(rows, request.position)
        if rows is None or pair is None:
            continue
        layers.append(layer.index)
        keys.append(read_only_floats(pair[0].cpu().numpy()))
        values.append(read_only_floats(pair[1].cpu().numpy()))
        dropped.append(heads_without(rows, request.position))
        dtype = str(rows.keys.dtype).removeprefix("torch.")
    note = past.half.note if past.half is not None and request.position >= past.half.had else ""
    note = note or ("" if layers else f"Position {request.position} is not in the cache.")
    coded_keys, coded_values = (
        tuple(past.exact_from(layer, tensor) > request.position for layer in layers) for tensor in get_args(TensorName)
    )
    return RowSlice(
        request, past.provenance_of(layers, first=request.position), dtype, tuple(layers), tuple(keys), tuple(values),
        note, ms_since(began), tuple(dropped) if any(dropped) else (),
        coded_keys=coded_keys if any(coded_keys) else (), coded_values=coded_values if any(coded_values) else (),
    )  # fmt: skip


def table_slice(request: TableRequest, cache: RowSource) -> TableSlice:
    """The pages of a sequence in logical order, when it had `num_tokens` tokens."""
    if not cache.spec.is_paged:
        return TableSlice(request, 1, (), request.num_tokens, "This cache mode has no pages.")
    tables = tuple(read_only_ints(np.array(page_ids, np.int64)) for page_ids in cache.page_ids_at(request.num_tokens))
    return TableSlice(request, cache.spec.page_size, tables, min(request.num_tokens, cache.num_tokens), "")


def tensor_label(kind: str, tensor: TensorName) -> str:
    """The name of a cached tensor: latent attention caches a compressed latent and one rotary key instead of K and
    V."""
    if kind == "latent":
        return "latent" if tensor == "keys" else "rotary key"
    return "K" if tensor == "keys" else "V"


def no_rows(kind: str, is_now: bool = True) -> str:
    """A note that says why a layer of this kind has no rows."""
    if kind == "linear" and not is_now:
        return "This layer keeps a recurrent state, which moves on with every token: go to this step to see it."
    if kind == "linear":
        return "This layer keeps a recurrent state of constant size, and no K and V."
    if kind == "shared":
        return "This layer reads the K and V of an earlier layer and keeps none of its own."
    return "This layer holds no K and V now."


def missing_note(past: RowsAt, layer: int) -> str:
    """Why a layer has no rows of a suspended step; empty where it has them, or no step is suspended."""
    return past.half.note if past.half is not None and not past.half.has_passed(layer) else ""


def checked(request: SliceRequest, geometry: CacheGeometry, num_tokens: int, whose: str) -> SliceRequest:
    """A request limited to existing tokens. Raises `InputError` for a layer or head that does not exist; `whose` names
    the model or file."""
    layer, kv_head = getattr(request, "layer", 0), getattr(request, "kv_head", 0)
    if not 0 <= layer < len(geometry.layers):
        raise InputError(f"There is no layer {layer}: {whose} has layers 0 … {len(geometry.layers) - 1}.")
    if kv_head < 0:
        raise InputError(f"There is no kv head {kv_head}: count from 0.")
    return within(request, num_tokens)


def within(request: SliceRequest, num_tokens: int) -> SliceRequest:
    """A request limited to existing tokens: since it was sent, the sequence may have gone back."""
    changes: dict[str, int] = {}
    for name in ("num_tokens", "previous_tokens", "start", "stop"):
        value = getattr(request, name, None)
        if value is not None:
            changes[name] = min(max(value, 0), num_tokens)
    if (count := getattr(request, "count", None)) is not None:
        changes["count"] = max(1, count)
    return structs.replace(request, **changes)
