"""Grids of layers and heads by tokens: lines that exist, cells where they are drawn, one scale."""

from __future__ import annotations

import numpy as np
import pytest

from app.draw import grid as grids
from app.draw.colormap import NON_FINITE, magnitude_table, packed
from app.draw.grid import GridLine

TABLE = magnitude_table("#000000", "#0000ff", "#ffffff", "#ff00ff")


def grid(columns: int = 5, per_column: int = 1) -> grids.ValueGrid:
    values = np.full((2, 2, columns), np.nan, np.float32)
    values[0] = np.arange(2 * columns).reshape(2, columns) / 10
    values[1, 0, :3] = (0.5, np.nan, 0.2)
    return grids.grid("K", values, (0, 3), ((2, columns), (1, 3)), per_column, columns * per_column - 1)


def test_a_grid_has_a_line_for_every_head_that_exists() -> None:
    shown = grid()
    assert shown.lines == (GridLine(0, 0, 5), GridLine(0, 1, 5), GridLine(3, 0, 3))
    assert grids.layer_spans(shown, 30) == ((0, 0, 20), (3, 20, 30))
    assert grids.row_span(shown, 3, 0, 30) == (20, 30)
    assert grids.row_span(shown, 3, 1, 30) is None


def test_what_does_not_exist_is_empty_and_what_is_no_number_is_loud() -> None:
    pixels = grids.paint(grid(), 50, 30, 1.0, TABLE)
    words = packed(TABLE)
    assert pixels.shape == (30, 50)
    assert pixels[25, 15] == words[NON_FINITE]
    assert pixels[25, 45] == 0
    assert pixels[0, 0] == words[0]


@pytest.mark.parametrize(("width", "height"), [(50, 30), (5, 3), (3, 2), (1, 1)])
def test_the_cell_under_the_cursor_is_the_one_that_is_drawn(width: int, height: int) -> None:
    shown = grid()
    for x in range(width):
        cell = grids.find(shown, x, 0, width, height)
        assert cell is not None
        assert cell.value == shown.values[cell.index, cell.column]
        if width <= 5:  # of several cells the largest is drawn, and read
            start, stop = grids.column_span(shown, cell.first, width) or (-1, -1)
            assert start <= x < stop
    assert grids.find(shown, -1, 0, width, height) is None


def test_a_cell_says_which_positions_it_stands_for() -> None:
    shown = grid(per_column=4)
    cell = grids.find(shown, 49, 0, 50, 30)
    assert cell is not None
    assert (cell.first, cell.last) == (16, 18), "the last column is not full"
    assert grids.find(shown, 49, 29, 50, 30) is None, "this head has no such column"
    assert grids.column_span(shown, 17, 50) == (40, 50)


def test_one_scale_spans_all_pictures() -> None:
    shown = grid()
    assert grids.shared_limit((shown,)) == pytest.approx(0.9)
    assert grids.largest((shown,)) == pytest.approx(0.9)
    empty = grids.grid("V", np.empty((0, 1, 0), np.float32), (), (), 1, 0)
    assert grids.shared_limit((empty,)) == 1.0
    assert grids.paint(empty, 4, 4, 1.0, TABLE).sum() == 0


def test_where_a_codec_begins_to_keep_rows_exact() -> None:
    sizes = ((1, 6), (2, 6))
    values = np.zeros((2, 2, 6), np.float32)
    values[0, 0, :3] = 0.1
    values[1, 1, 3] = 0.2
    kept = grids.grid("V", values, (0, 1), sizes, 1, 6)
    assert grids.exact_from(kept) == 4
    values[0, 0, 5] = np.nan  # no number is an error, too
    assert grids.exact_from(grids.grid("V", values, (0, 1), sizes, 1, 6)) is None
    assert grids.exact_from(grids.grid("V", np.zeros((2, 2, 6), np.float32), (0, 1), sizes, 1, 6)) == 0
