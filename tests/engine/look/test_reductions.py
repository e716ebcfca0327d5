"""Reductions against what they are, cell by cell: columns of every size, lengths that none of them divides."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from engine.cache.contract import RowDelta
from engine.look.reductions import cells_of, missing_rows, num_positions_of, pooled_weights, rows_in, touched

LENGTHS = range(1, 12)


@pytest.mark.parametrize("per_column", [1, 2, 3, 5, 16])
def test_a_column_of_weights_is_the_largest_that_there_was(per_column: int) -> None:
    """Of three heads that miss rows, and one with a real NaN, which is then in all of its weights."""
    generator = torch.Generator().manual_seed(per_column)
    for length in LENGTHS:
        row = torch.rand(4, length, generator=generator)
        was_dropped = torch.rand(4, length, generator=generator) < 0.6
        was_dropped[:, -1] = was_dropped[3] = False
        row[was_dropped] = row[3] = math.nan
        is_gone = missing_rows(row)
        assert is_gone.tolist() == was_dropped.tolist()
        check_columns(row, is_gone, per_column)
        check_columns(row[:, :-1], is_gone[:, :-1], per_column)  # a part, which may end in rows that are gone


def check_columns(row: torch.Tensor, is_gone: torch.Tensor, per_column: int) -> None:
    length = row.shape[1]
    if not length:
        return
    weights, absent = pooled_weights(row, is_gone, per_column)
    for head in range(len(row)):
        for column in range(-(-length // per_column)):
            cells = slice(column * per_column, min(length, (column + 1) * per_column))
            held = row[head, cells][~is_gone[head, cells]]
            expected = float(held.max()) if len(held) else math.nan
            assert weights[head, column] == pytest.approx(expected, nan_ok=True)
            assert (0 if absent is None else absent[head, column]) == int(is_gone[head, cells].sum())
    assert weights.shape == (len(row), -(-length // per_column))
    assert (absent is None) == (not bool(is_gone.any()))


@pytest.mark.parametrize("per_column", [1, 3, 4])
@pytest.mark.parametrize("per_row", [1, 2])
def test_rows_at_any_positions_are_in_the_cells_of_these(per_column: int, per_row: int) -> None:
    stop, channels = 11, 4
    generator = torch.Generator().manual_seed(per_column)
    rows = torch.randn(2, 5, channels, generator=generator)
    positions = torch.tensor([[0, 1, 5, 6, 10], [2, 3, 4, 9, 10]])
    shape = 2, -(-stop // per_column)
    heads, slots, at = rows_in(positions, np.ones(shape, bool), per_column, stop)
    lows, highs, held = cells_of(rows[heads, slots], at, math.prod(shape), per_row)
    for head in range(2):
        for column in range(shape[1]):
            place = head * shape[1] + column
            mine = rows[head][positions[head] // per_column == column]
            assert held[place] == len(mine)
            for row in range(channels // per_row):
                part = mine[:, row * per_row : (row + 1) * per_row]
                low, high = (float(part.min()), float(part.max())) if len(mine) else (math.nan, math.nan)
                assert lows[place, row] == pytest.approx(low, nan_ok=True)
                assert highs[place, row] == pytest.approx(high, nan_ok=True)
    assert num_positions_of(np.arange(-(-stop // per_column)), per_column, stop).sum() == stop


@pytest.mark.parametrize("first", [0, 4, 6])
@pytest.mark.parametrize("per_column", [1, 2, 3])
def test_the_columns_that_changed_are_those_of_the_rows_that_did(first: int, per_column: int) -> None:
    stop = 20
    evicted = torch.tensor([[1, 7, 8], [2, 11, 19]])
    for written, rewritten, left in ((range(17, 20), range(0), range(0)), (range(19, 20), range(8, 12), range(3, 6))):
        delta = RowDelta(written, left_window=left, evicted=(evicted,))
        shape = 2, -(-(stop - first) // per_column)
        found = touched(delta, rewritten, shape, first, per_column)
        expected = np.zeros(shape, bool)
        for head in range(2):
            for position in (*written, *rewritten, *left, *evicted[head].tolist()):
                if position >= first:
                    expected[head, (position - first) // per_column] = True
        assert found.tolist() == expected.tolist()
