"""Tensors reduced to the cells of a picture: extremes, weights, and counts of what was dropped.

A cell keeps both its smallest and its largest value, so that a single hot channel never averages away; NaN wins.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.look.probe import frozen
from engine.wire.records import Floats, Ints

TOP_POSITIONS = 5
STACKED_NUMBERS = 1 << 21


def fill_cells(
    low: Floats,
    high: Floats,
    tensors: Sequence[tuple[int, torch.Tensor, int]],
    per_column: int,
    per_row: int,
    first_column: int = 0,
) -> None:
    """Write the extremes of layers `(index, [H, S, D], first position)` into cells `[L, H, columns, rows]`, whose
    columns begin with `first_column`."""
    for layers, tensor, first in stacked(tensors):
        low_cells, high_cells, column = pooled(tensor.float(), first, per_column, per_row)
        num_heads, num_columns, num_rows = low_cells.shape[0] // len(layers), *low_cells.shape[1:]
        start = column - first_column
        cells = (layers, slice(0, num_heads), slice(start, start + num_columns), slice(0, num_rows))
        form = len(layers), num_heads, num_columns, num_rows
        low[cells], high[cells] = low_cells.reshape(form), high_cells.reshape(form)


def stacked(tensors: Sequence[tuple[int, torch.Tensor, int]]) -> Iterator[tuple[list[int], torch.Tensor, int]]:
    """Layers `(index, [H, S, D], first position)` of one form as `[L * H, S, D]`, as many at once as are small: for
    those the number of products costs more than the numbers, for large ones a copy would."""
    forms: dict[object, list[tuple[int, torch.Tensor, int]]] = {}
    for item in tensors:
        forms.setdefault((item[1].shape, item[1].dtype, item[1].device, item[2]), []).append(item)
    for items in forms.values():
        at_once = max(1, STACKED_NUMBERS // max(1, items[0][1].numel()))
        for start in range(0, len(items), at_once):
            part = items[start : start + at_once]
            together = part[0][1] if len(part) == 1 else torch.cat([tensor for _, tensor, _ in part])
            yield [index for index, _, _ in part], together, part[0][2]


def pooled(tensor: torch.Tensor, first: int, per_column: int, per_row: int) -> tuple[Floats, Floats, int]:
    """Smallest and largest value of each cell of `[H, S, D]`: two arrays `[H, columns, rows]`, and the first column.

    Columns are aligned to absolute positions, so a cell does not wander when tokens are added or dropped.
    """
    column = first // per_column
    low = high = tensor
    if per_column > 1:
        lead = first - column * per_column
        tail = -(lead + tensor.shape[1]) % per_column
        parts = split(edge_padded(tensor, lead, tail), per_column)
        low, high = parts.amin(2), parts.amax(2)
    if per_row > 1:
        tail = -tensor.shape[2] % per_row
        wide = split(edge_padded(low.mT, 0, tail), per_row)
        tall = wide if low is high else split(edge_padded(high.mT, 0, tail), per_row)
        low, high = wide.amin(2).mT, tall.amax(2).mT
    return low.cpu().numpy(), high.cpu().numpy(), column


@dataclass(frozen=True, eq=False)
class Scattered:
    """Cells of rows that stand apart: extremes `[H, columns, rows]`, and how many positions of each column are gone."""

    low: Floats
    high: Floats
    absent: Ints


def scattered(
    tensor: torch.Tensor, positions: torch.Tensor, start: int, stop: int, per_column: int, per_row: int
) -> Scattered:
    """`[H, S, D]` at `positions` `[H, S]`, as cells over all positions below `stop`; those before `start` are left out.

    A column that holds no row is NaN; a NaN in a row still wins over everything.
    """
    low = high = tensor
    if per_row > 1:
        low, high = (torch.from_numpy(cells) for cells in pooled(tensor, 0, 1, per_row)[:2])
        positions = positions.cpu()
    heads, columns = tensor.shape[0], -(-stop // per_column)
    is_shown = (positions >= start) & (positions < stop)
    cells = (positions // per_column).clamp(0, max(0, columns - 1))[..., None].expand(-1, -1, low.shape[2])
    lowest = low.new_full((heads, columns, low.shape[2]), torch.inf)
    low = lowest.scatter_reduce(1, cells, low.masked_fill(~is_shown[..., None], torch.inf), "amin")
    high = (-lowest).scatter_reduce(1, cells, high.masked_fill(~is_shown[..., None], -torch.inf), "amax")
    is_empty = low > high
    held = torch.zeros(heads, columns, dtype=torch.long, device=tensor.device)
    held.scatter_add_(1, cells[..., 0], is_shown.long())
    room = torch.full((columns,), per_column)
    if columns:
        room[-1] = stop - (columns - 1) * per_column
    return Scattered(
        low.masked_fill(is_empty, torch.nan).cpu().numpy(),
        high.masked_fill(is_empty, torch.nan).cpu().numpy(),
        (room - held.cpu()).clamp(min=0).numpy(),
    )


def split(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """`[H, S, D]` -> `[H, S / size, size, D]`."""
    return tensor.reshape(tensor.shape[0], -1, size, tensor.shape[2])


def edge_padded(tensor: torch.Tensor, lead: int, tail: int) -> torch.Tensor:
    """Repeat the first and last row along axis 1: padding that changes no minimum and no maximum."""
    parts = [tensor[:, :1].expand(-1, lead, -1), tensor, tensor[:, -1:].expand(-1, tail, -1)]
    return torch.cat([p for p in parts if p.shape[1]], 1)


def missing(row: torch.Tensor) -> torch.Tensor:
    """Where a row `[H, S]` had nothing to look at.

    A softmax with a NaN in it is NaN everywhere, and the newest row is always there: so a head whose last weight is a
    number has NaN only where rows were missing.
    """
    return row.isnan() & ~row[:, -1:].isnan() if row.shape[1] else row.isnan()


def pooled_weights(row: torch.Tensor, is_gone: torch.Tensor, per_column: int) -> tuple[Floats, Ints | None]:
    """The largest weight of each column of a row `[H, S]` and how many of its positions had no row to look at."""
    tail = -row.shape[1] % per_column
    padded = torch.nn.functional.pad(row.masked_fill(is_gone, -1.0), (0, tail), value=-1.0)
    weights = padded.reshape(len(row), -1, per_column).amax(2)
    if not bool(is_gone.any()):
        return weights.cpu().numpy(), None
    gone = torch.nn.functional.pad(is_gone.long(), (0, tail)).reshape(len(row), -1, per_column).sum(2)
    return weights.masked_fill(weights < 0, torch.nan).cpu().numpy(), frozen_ints(gone.cpu().numpy())


def most_attended(row: torch.Tensor, base: int) -> tuple[Ints, Floats]:
    """The positions of a row `[H, S]` from position `base` on that received most, and what they received, `[H, N]`.
    Negative weights are those of rows that were not there."""
    found = row.topk(min(TOP_POSITIONS, row.shape[1]), dim=1)
    weights = found.values.masked_fill(found.values < 0, torch.nan)
    return frozen_ints(found.indices.cpu().numpy() + base), frozen(weights.cpu().numpy())


def frozen_ints(array: np.ndarray) -> Ints:
    array = np.ascontiguousarray(array, np.int64)
    array.flags.writeable = False
    return array


def since(began: float) -> float:
    return (time.perf_counter() - began) * 1e3
