"""Pictures as matrices: every number stands at its place."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.draw.matrix import Matrix, MatrixRow, matrix_of, on_same_positions, overlaid
from engine.wire.pictures import AttentionRequest, HeadRequest, WallRequest
from tests.app import samples
from tests.app.panels.compare.desk import pooled


def test_a_wall_is_one_matrix_of_layers_heads_and_channels() -> None:
    picture = samples.wall_picture(WallRequest(0, 20, 20, "keys", False, 10, 8))
    matrix = matrix_of(picture)
    rows = picture.low.shape[3]
    row = matrix.row_of(1, 1, 3 * picture.dims_per_row)
    assert row == (samples.KV_HEADS + 1) * rows + 3
    assert matrix.places[row] == MatrixRow(1, 1, 3 * picture.dims_per_row, 4 * picture.dims_per_row - 1)
    np.testing.assert_array_equal(matrix.high[row], picture.high[1, 1, :, 3])
    assert matrix.names(samples.KV_HEADS * rows) == "L1·0"
    assert matrix.names(2 * rows - 1) == "L0·1"
    assert matrix.borders[0] == samples.KV_HEADS * rows
    cell = matrix.at(picture.tokens_per_column, 0)
    assert cell is not None
    assert (cell.column, cell.first, cell.last) == (1, picture.tokens_per_column, 2 * picture.tokens_per_column - 1)


def test_positions_that_a_layer_does_not_hold_are_no_nan() -> None:
    """As those of an encoder-decoder: the first layer holds tokens 9 to 19, the others 0 to 8. A NaN within them stays
    one."""
    picture = samples.wall_picture(WallRequest(0, 20, 20, "keys", False, 5, 8))
    assert (picture.tokens_per_column, picture.low.shape[2]) == (4, 5)
    low = picture.low.copy()
    low[0, :, :2] = low[1:, :, 3:] = low[0, 1, 3, 2] = np.nan
    held = np.array([[9, 20], *[[0, 9]] * (len(picture.layers) - 1)])
    matrix = matrix_of(replace(picture, low=low, high=low, held=held), "X{}".format)
    rows = picture.low.shape[3]
    first = samples.KV_HEADS * rows
    assert np.unique(matrix.is_gone[:first], axis=0).tolist() == [[True, True, False, False, False]]
    assert np.unique(matrix.is_gone[first:], axis=0).tolist() == [[False, False, False, True, True]]
    assert np.argwhere(np.isnan(matrix.shown)).tolist() == [[rows + 2, 3]]
    assert matrix.gone is not None
    assert matrix.gone.share[0].tolist() == [1, 1, 0.25, 0, 0]
    assert matrix.gone.share[-1].tolist() == [0, 0, 0.75, 1, 1]
    assert matrix.names(0) == "X0·0"
    assert matrix_of(picture).gone is None


def test_a_head_has_channels_below_each_other_and_ends_with_its_tokens() -> None:
    picture = samples.head_picture(HeadRequest(0, 21, "keys", 1, 1, 4, 21, 6))
    matrix = matrix_of(picture)
    np.testing.assert_array_equal(matrix.low, picture.low.T)
    assert (matrix.start, matrix.stop) == (4, 21)
    last, other = matrix.at(20, 0), matrix.at(4 + picture.tokens_per_column + 0.5, 2.9)
    assert last is not None
    assert (last.column, last.last) == (matrix.low.shape[1] - 1, 20)
    assert other is not None
    assert (other.row, other.column) == (2, 1)
    assert matrix.at(3.9, 0) is None
    assert matrix.at(5, matrix.low.shape[0]) is None


def test_a_part_of_a_head_that_has_left_its_window_shows_the_rows_that_are_left() -> None:
    """The first four of eight tokens are asked for; the window still holds two of them."""
    whole, part = (samples.head_picture(HeadRequest(0, 8, "keys", 1, 1, 0, stop, 8)) for stop in (8, 4))
    slid = [replace(p, low=p.low[2:], high=p.high[2:], positions=p.positions[2:]) for p in (whole, part)]
    assert [(m.start, m.stop, m.whole, m.asked) for m in map(matrix_of, slid)] == [
        (2, 8, (2, 8), None),
        (2, 4, (0, 8), (0, 4)),
    ]


def test_attention_has_a_row_a_query_head() -> None:
    picture = samples.attention_picture(AttentionRequest(0, 3, 1, 100), 12)
    matrix = matrix_of(picture)
    assert matrix.places[-1] == MatrixRow(1, samples.HEADS - 1, is_query=True)
    assert matrix.borders == tuple(range(picture.group_size, samples.HEADS, picture.group_size))
    assert matrix.row_of(1, 2, None) == 2
    assert matrix.row_of(0, 2, None) is None


def a_head(values: np.ndarray, start: int = 0, absent: np.ndarray | None = None) -> Matrix:
    """Values `[tokens, channels]` of a head from a position on."""
    picture = samples.head_picture(HeadRequest(0, start + len(values), "keys", 0, 0, 0, start + len(values), 100))
    positions = np.arange(start, start + len(values))
    return matrix_of(replace(picture, low=values, high=values, positions=positions, absent=absent))


def told(matrix: Matrix, position: float, row: float) -> str:
    cell = matrix.at(position, row)
    return "" if cell is None else cell.text()


def test_sides_that_hold_other_positions_are_drawn_over_the_same_ones() -> None:
    """A window holds only its last rows: the positions before them are empty, not zero."""
    whole = a_head(np.arange(12, dtype=np.float32).reshape(6, 2))
    window = a_head(np.full((2, 2), 3, np.float32), start=4)
    a, b = on_same_positions(whole, window)
    assert (b.start, b.whole, b.low.shape) == (0, (0, 6), (2, 6))
    assert told(b, 3.5, 0) == "not held"
    assert told(b, 4.5, 0) == "3.0"
    assert b.shown[0, 0] == 0
    assert b.gone is not None
    assert told(a, 3.5, 1) == "7.0"
    both = overlaid(a, b)
    assert told(both, 4.5, 0) == "5.5"
    assert told(both, 0.5, 0) == "not held"


def test_a_nan_is_shown_as_nan_and_a_dropped_row_as_absent() -> None:
    values = np.array([[1, 2], [np.nan, 3], [np.nan, np.nan]], np.float32)
    matrix = a_head(values, absent=np.array([0, 0, 1]))
    assert told(matrix, 1.5, 0) == "NaN"
    assert told(matrix, 2.5, 0) == "not held"
    assert told(matrix, 3.5, 0) == ""
    assert np.isnan(matrix.shown[0, 1])
    assert matrix.shown[0, 2] == 0


def test_a_pooled_cell_shows_both_extremes() -> None:
    picture = samples.head_picture(HeadRequest(0, 21, "keys", 1, 1, 0, 21, 6))
    matrix = matrix_of(replace(picture, low=picture.low * 0 - 1.5, high=picture.low * 0 + 0.25))
    assert told(matrix, 0.5, 0) == "-1.5 … 0.25"


def test_the_mean_of_extremes_is_no_small_number_between_two_large_ones() -> None:
    a, b = on_same_positions(pooled(-3, 3.5, 0, 12, 6), pooled(-3.5, 3, 0, 12, 6))
    mean = overlaid(a, b)
    assert mean.has_extremes
    assert told(mean, 0.5, 0) == "-3.25 … 3.25"
    np.testing.assert_array_equal(mean.shown, np.full((2, 2), 3.25))
    assert not overlaid(*on_same_positions(pooled(1, 1, 0, 6, 1), pooled(2, 2, 0, 6, 1))).has_extremes


def test_each_matrix_says_which_tokens_it_shows_under_a_point() -> None:
    """B holds the last 7 of 24 tokens: its cells pool fewer and begin at other positions, none of them before token
    0."""
    sides = on_same_positions(pooled(-1, 1, 0, 24, 6), pooled(-2, 2, 17, 24, 3), pooled(0.5, 0.5, 17, 24, 1))

    def spans(position: float) -> list[str]:
        return ["" if cell is None else cell.span for cell in (side.at(position, 0) for side in sides)]

    assert spans(18.5) == ["18…23", "17…19", "18"]
    assert spans(0.5) == ["0…5", "0…1", "0"]
    assert spans(30) == ["", "", ""]


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(0, 9), st.integers(1, 12), st.integers(1, 3)),
    st.tuples(st.integers(0, 9), st.integers(1, 12), st.integers(1, 3)),
)
def test_each_cell_lies_over_that_of_its_own_position(
    first: tuple[int, int, int], second: tuple[int, int, int]
) -> None:
    """For two heads with any beginning, end and pooling, each cell names its position and its side."""
    sides = []
    for side, (start, count, per) in enumerate((first, second)):
        matrix = pooled(0, 0, start, start + count, per)
        cells = np.arange(matrix.low.size, dtype=np.float32).reshape(matrix.low.shape) + 100 * side
        sides.append(replace(matrix, low=cells, high=cells + 0.5))
    a, b = sides
    both = overlaid(a, b)
    for column in range(a.low.shape[1]):
        under = b.span_of(a.start + column * a.per_column)
        for row in range(2):
            if under is None:
                assert both.is_gone[row, column]
                continue
            over = b.at(under[0], row)
            assert over is not None
            assert not both.is_gone[row, column]
            assert both.low[row, column] == (a.low[row, column] + over.low) / 2
            assert both.high[row, column] == (a.high[row, column] + over.high) / 2
