"""What-if pairs and damage pictures from plain numbers."""

from __future__ import annotations

import numpy as np
import pytest

from app.draw import grid as grids
from app.draw.colormap import NON_FINITE, magnitude_table, packed
from app.draw.format import bytes_words, divergence_words
from app.draw.grid import GridLine
from app.panels.what_if.draw import pairs, winners
from engine.spec.cache import CacheSpec
from engine.wire.commands import WhatIf
from engine.wire.measurements import Shift, WhatIfAnswer

TABLE = magnitude_table("#000000", "#0000ff", "#ffffff", "#ff00ff")


def answer(*shifts: Shift) -> WhatIfAnswer:
    return WhatIfAnswer(WhatIf(0, CacheSpec()), 3, 0.1, 1.0, True, (), (), 0.5, 2048, 512, 1.0, "", shifts)


SHIFTS = (
    Shift(5, " a", 0.5, 0.2, 0, 1),
    Shift(6, "\u202e", 0.3, 0.0001, 1, 40),
    Shift(7, " b", 0.1, 0.1, 2, 2),
    Shift(9, " new", 0.0002, 0.6, 30, 0),
)


def test_pairs_keep_the_new_winner_and_the_order_before() -> None:
    shown = pairs(answer(*SHIFTS), 3)
    assert [p.token_id for p in shown] == [5, 6, 9]
    assert [p.rank for p in shown] == ["1 → 2", "2 → 41", "31 → 1"]
    assert shown[2].moved == 30
    assert shown[1].text == "\\u202e"
    assert (shown[1].number_before, shown[1].number_after) == ("30.0 %", "<0.1 %")
    assert winners(answer(*SHIFTS)) == ("·a", "·new")
    assert pairs(answer(), 5) == ()
    assert winners(answer()) == ("", "")


def test_words_never_make_a_change_look_like_none() -> None:
    assert divergence_words(0) == "0 nats"
    assert divergence_words(1e-9) == "<1e-6 nats"
    assert divergence_words(0.0123) == "0.0123 nats"
    assert bytes_words(2048, 512) == "2.0 KiB → 512 B"


def grid(columns: int = 5, per_column: int = 1) -> grids.Grid:
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
