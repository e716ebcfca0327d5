"""Reduces tensors to the cells of a picture: extremes, weights, and how many rows are in each cell.

A cell keeps both its smallest and its largest value, so that a single outlier channel never averages away. A NaN makes
its cell NaN.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.cache.contract import RowDelta
from engine.wire.records import Floats, Ints, read_only_floats, read_only_ints

TOP_POSITIONS = 5

Flags = npt.NDArray[np.bool_]


def per_cell(num: int, max_cells: int) -> int:
    """How many items share a cell so that `num` of them fit into `max_cells` cells."""
    return max(1, -(-max(1, num) // max(1, max_cells)))


def fill_cells(
    low: Floats, high: Floats, layers: Sequence[int], rows: torch.Tensor, first: int, per_column: int, per_row: int
) -> None:
    """Write the extremes of rows `[L, H, S, D]` from position `first` on into cells `[layers, H, columns, rows]`."""
    num_layers, num_heads, _, _ = rows.shape
    low_cells, high_cells, column = pooled(rows.flatten(0, 1), first, per_column, per_row)
    _, num_columns, num_rows = low_cells.shape
    cells = (as_slice(layers), slice(0, num_heads), slice(column, column + num_columns), slice(0, num_rows))
    form = num_layers, num_heads, num_columns, num_rows
    low[cells], high[cells] = low_cells.reshape(form), high_cells.reshape(form)


def as_slice(numbers: Sequence[int]) -> slice | list[int]:
    """Ascending numbers as an index, which costs less where they are consecutive."""
    is_run = numbers[-1] - numbers[0] == len(numbers) - 1
    return slice(numbers[0], numbers[-1] + 1) if is_run else list(numbers)


def pooled(tensor: torch.Tensor, first: int, per_column: int, per_row: int) -> tuple[Floats, Floats, int]:
    """Smallest and largest value of each cell of `[H, S, D]`: two arrays `[H, columns, rows]`, and the first column.

    Columns are aligned to absolute positions, so that a cell does not move when tokens are added or evicted.
    """
    column = first // per_column
    low, high = extremes(tensor, first - column * per_column, per_column, per_row)
    lowest = low.float().cpu().numpy()
    return lowest, lowest if high is low else high.float().cpu().numpy(), column


def extremes(tensor: torch.Tensor, lead: int, per_column: int, per_row: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Smallest and largest value of each cell of `[H, S, D]`; in the first column, the first `lead` tokens are
    missing."""
    low = high = tensor
    if per_column > 1:
        low, high = extremes_of_runs(low, high, lead, per_column, 1)
    if per_row > 1:
        low, high = extremes_of_runs(low, high, 0, per_row, 2)
    return low, high


def extremes_of_runs(
    low: torch.Tensor, high: torch.Tensor, lead: int, size: int, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest value of `low` and the largest of `high`, both of one shape, in each run of `size` along a
    dimension. The first run lacks its first `lead`, and the last may be shorter. Whole runs are read in place: padding
    the ends would copy everything."""
    count = low.shape[dim]
    first = min(-lead % size, count)
    last = first + (count - first) // size * size
    lows, highs = [], []
    for start, stop, length in ((0, first, first), (first, last, size), (last, count, count - last)):
        if start < stop:
            parts = [part.narrow(dim, start, stop - start) for part in (low, high)]
            runs = [torch.unflatten(part, dim, (-1, length)) for part in parts]
            lows.append(runs[0].amin(dim + 1))
            highs.append(runs[1].amax(dim + 1))
    return (lows[0], highs[0]) if len(lows) == 1 else (torch.cat(lows, dim), torch.cat(highs, dim))


def rows_in(
    positions: torch.Tensor, wanted: Flags, per_column: int, stop: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The rows at `positions` `[H, S]`, from 0 up to `stop`, that are in the `wanted` ones of cells `[H, columns]`: the
    head, the slot and the cell `[M]` of each; wanted cells are numbered in order."""
    columns = wanted.shape[1]
    numbers = np.full((wanted.shape[0], columns + 1), -1, np.int64)  # the last column is that of all other positions
    numbers[:, :columns][wanted] = np.arange(int(wanted.sum()))
    is_shown = (positions >= 0) & (positions < min(stop, columns * per_column))
    column = torch.where(is_shown, positions // per_column, columns)
    cells = torch.from_numpy(numbers).to(positions.device).gather(1, column)
    heads, slots = (cells >= 0).nonzero(as_tuple=True)
    return heads, slots, cells[heads, slots]


def cells_of(values: torch.Tensor, cells: torch.Tensor, num_cells: int, per_row: int) -> tuple[Floats, Floats, Ints]:
    """The extremes `[cells, rows]` of rows `[M, D]`, by the index of the cell `[M]` that each is in, NaN where there
    are none, and how many rows each has. A NaN makes its cell NaN."""
    num_rows = -(-values.shape[1] // per_row)
    low = high = values
    if per_row > 1 and len(values):
        low, high = (part[0] for part in extremes(values[None], 0, 1, per_row))
    elif per_row > 1:
        low = high = values.new_empty(0, num_rows)
    index = cells[:, None].expand(-1, num_rows)
    lowest = low.new_full((num_cells, num_rows), torch.inf)
    low = lowest.scatter_reduce(0, index, low, "amin")
    high = (-lowest).scatter_reduce(0, index, high, "amax")
    held = torch.bincount(cells, minlength=num_cells)
    is_empty = (held == 0)[:, None]
    return (
        low.masked_fill(is_empty, torch.nan).cpu().numpy(),
        high.masked_fill(is_empty, torch.nan).cpu().numpy(),
        held.cpu().numpy(),
    )


def touched(delta: RowDelta, rewritten: range, shape: tuple[int, int], first: int, per_column: int) -> Flags:
    """The cells `[H, columns]`, from position `first` on, in which rows were written, `rewritten` or evicted."""
    is_touched = np.zeros(shape, bool)
    for run in (delta.written, rewritten, delta.left_window):
        if run.stop > max(first, run.start):
            is_touched[:, max(0, run.start - first) // per_column : -(-(run.stop - first) // per_column)] = True
    for positions in delta.evicted:
        columns = (positions.cpu().numpy() - first) // per_column
        heads, places = np.nonzero((columns >= 0) & (columns < shape[1]))
        is_touched[heads, columns[heads, places]] = True
    return is_touched


def num_positions_of(columns: npt.NDArray[np.int64], per_column: int, stop: int) -> npt.NDArray[np.int64]:
    """How many positions below `stop` each of these columns covers."""
    return np.clip(stop - columns * per_column, 0, per_column)


def missing_rows(row: torch.Tensor) -> torch.Tensor:
    """Where a row `[H, S]` of weights has NaN because there was no K and V row to attend to.

    A softmax over a NaN is NaN everywhere, and the newest row is always there. So if a head's last weight is a number,
    its NaNs are missing rows.
    """
    is_nan = row.isnan()
    return is_nan & ~is_nan[:, -1:]


def in_columns(row: torch.Tensor, per_column: int, chosen: Callable[[torch.Tensor, int], torch.Tensor]) -> torch.Tensor:
    """One number of each column of `[H, S]`, which is `chosen` along a dimension."""
    if per_column == 1:
        return row
    padded = torch.nn.functional.pad(row, (0, -row.shape[1] % per_column)).reshape(len(row), -1, per_column)
    return chosen(padded, 2)


def pooled_weights(
    row: torch.Tensor, is_gone: torch.Tensor | None, per_column: int, *, is_signed: bool = False
) -> tuple[Floats, Ints | None]:
    """The largest weight in each column of a row `[H, S]`, or the one farthest from zero where they have signs, without
    those that are gone; NaN where all are. And how many of each column are gone; None where none is."""
    largest = farthest_from_zero if is_signed else torch.amax
    if is_gone is None or not bool(is_gone.any()):
        found: Floats = in_columns(row, per_column, largest).cpu().numpy()
        return (found.copy() if per_column == 1 else found), None
    weights = in_columns(row.masked_fill(is_gone, 0.0), per_column, largest).cpu().numpy()
    padded = torch.nn.functional.pad(is_gone.long(), (0, -is_gone.shape[1] % per_column))
    absent = padded.reshape(len(padded), -1, per_column).sum(2).cpu().numpy()
    expected = num_positions_of(np.arange(weights.shape[1]), per_column, row.shape[1])
    return np.where(absent == expected, np.float32(np.nan), weights), read_only_ints(absent)


def farthest_from_zero(values: torch.Tensor, dim: int) -> torch.Tensor:
    """The number farthest from zero along a dimension, with its sign; NaN if any is NaN."""
    if values.shape[dim] == 1:
        return values.select(dim, 0).clone()
    low, high = values.amin(dim), values.amax(dim)
    return torch.where(-low >= high, low, high)


def largest_weights(row: torch.Tensor, base: int) -> tuple[Ints, Floats]:
    """The positions of a row `[H, S]`, counted from position `base`, that received the most attention, and their
    weights, `[H, N]`. Missing rows are given as negative weights."""
    found = row.topk(min(TOP_POSITIONS, row.shape[1]), dim=1)
    return read_only_ints(found.indices.cpu().numpy() + base), read_only_floats(without_negative(found.values))


def without_negative(weights: torch.Tensor) -> Floats:
    """Weights on the host, with NaN in place of negative ones."""
    found: Floats = weights.cpu().numpy()
    return np.where(found < 0, np.float32(np.nan), found) if (found < 0).any() else found


def ms_since(began: float) -> float:
    """Milliseconds since `began`, a reading of `time.perf_counter`."""
    return (time.perf_counter() - began) * 1e3
