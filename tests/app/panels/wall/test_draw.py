"""The wall: where things stand, what their pixels are, and back from a pixel to a cell."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from app.draw import grid as pool
from app.draw.colormap import ColorScale, signed_table
from app.panels.wall import draw, view
from app.panels.wall.draw import Margins, WallRow
from engine.geometry.dimensions import LayerGeometry
from engine.spec.lenses import LENSES
from engine.wire.pictures import Magnitudes, StatePicture, WallPicture, WallRequest

MARGINS = Margins(left=30, top=16, gap=4, block_gap=16, note=13)
SCALE = ColorScale(signed_table("#0000ff", "#000000", "#ff0000", "#ff00ff"), is_signed=True)
RED, BLUE, LOUD = 0xFFFF0000, 0xFF0000FF, 0xFFFF00FF


def rows(layers: int, heads: int) -> tuple[WallRow, ...]:
    return tuple(WallRow(layer, heads) for layer in range(layers))


def slice_of(values: np.ndarray, per_column: int = 1, per_row: int = 1) -> WallPicture:
    layers, heads, columns, _ = values.shape
    request = WallRequest(0, columns * per_column, 0, "keys", False, columns, values.shape[3])
    values = values.astype(np.float32)
    return WallPicture(
        request, "live cache", "float32", tuple(range(layers)), (heads,) * layers, values, values,
        columns * per_column, per_column, per_row, "", 0.0,
    )  # fmt: skip


def painted(picture: WallPicture, layout: draw.WallLayout, wall_rows: tuple[WallRow, ...]) -> np.ndarray:
    values, absent = draw.cell_values(picture, wall_rows)
    return draw.paint(layout, picture, values, absent, np.ones(len(picture.layers), np.float32), SCALE)


@pytest.mark.parametrize(
    ("layers", "heads", "width", "height"),
    [
        (6, 4, 930, 250),
        (30, 3, 945, 270),
        (2, 32, 945, 270),
        (80, 8, 945, 270),
        (1, 1, 400, 120),
        (16, 8, 480, 460),
        (126, 8, 300, 150),
    ],
)
def test_every_head_has_its_place_and_none_overlap(layers: int, heads: int, width: int, height: int) -> None:
    layout = draw.arrange(rows(layers, heads), width, height, MARGINS)
    assert len(layout.pictures) == layers * heads
    covered = np.zeros((layout.height, layout.width), np.int32)
    for small in layout.pictures:
        covered[small.y : small.y + small.height, small.x : small.x + small.width] += 1
    assert covered.max() == 1
    assert covered.sum() == layers * heads * layout.picture_width * layout.picture_height
    assert layout.picture_height >= 6


def heads_per_line(layout: draw.WallLayout) -> int:
    first = layout.pictures[0]
    return sum((small.layer, small.y) == (first.layer, first.y) for small in layout.pictures)


def test_many_heads_wrap_and_many_layers_fold() -> None:
    wide = draw.arrange(rows(2, 32), 945, 270, MARGINS)
    assert heads_per_line(wide) == 8
    assert wide.picture_width > 90
    deep = draw.arrange(rows(30, 3), 945, 270, MARGINS)
    assert heads_per_line(deep) == 3
    assert deep.picture_height >= 15
    assert deep.height <= 270


def test_a_wall_that_cannot_fit_grows_instead_of_vanishing() -> None:
    layout = draw.arrange(rows(126, 8), 300, 150, MARGINS)
    assert layout.height > 150


def test_layers_without_k_and_v_take_a_line_that_says_so() -> None:
    mixed = (WallRow(0, 0, "recurrent state"), WallRow(1, 4), WallRow(2, 0, "recurrent state"))
    layout = draw.arrange(mixed, 600, 200, MARGINS)
    assert {small.layer for small in layout.pictures} == {1}
    assert [(label.layer, label.note) for label in layout.labels] == [
        (0, "recurrent state"),
        (1, ""),
        (2, "recurrent state"),
    ]


def test_a_state_beside_rows_stands_below_them_and_in_their_place_where_there_are_none() -> None:
    """Layer 0 keeps rows of two heads and two matrices of state, layer 1 a state alone, layer 2 rows alone."""
    both, alone, plain = (
        LayerGeometry(0, "full", 2, 4, 4, 2, state_elements=32),
        LayerGeometry(1, "linear", 0, 0, 0, 0, state_elements=16),
        LayerGeometry(2, "full", 2, 4, 4, 2),
    )
    pictures = [(0, 1.0), (0, -1.0), (1, -1.0)]
    found = tuple(
        StatePicture(layer, "recurrence", (1, 2, 2), "float32", *[np.full((2, 2), value, np.float32)] * 2, 1.0)
        for layer, value in pictures
    )
    picture = replace(slice_of(np.zeros((2, 2, 3, 4))), layers=(0, 2), states=found)
    shown = [
        row
        for layer, count in ((both, 2), (alone, 1), (plain, 0))
        for row in view.layer_rows(layer, {0: 2, 2: 2}, LENSES["keys"], count)
    ]
    assert [(row.label, row.num_heads, row.first_head) for row in shown] == [
        ("L0", 2, 0), ("L0 state", 2, 2), ("L1 state", 1, 0), ("L2", 2, 0),
    ]  # fmt: skip
    layout = draw.arrange(shown, 400, 200, MARGINS)
    pixels = painted(picture, layout, tuple(shown))
    view.paint_states(pixels, layout, picture, SCALE)
    colours = {(small.layer, small.kv_head): int(pixels[small.y + 2, small.x + 2]) for small in layout.pictures}
    black = 0xFF000000
    assert colours == {
        (0, 0): black, (0, 1): black, (0, 2): RED, (0, 3): BLUE, (1, 0): BLUE, (2, 0): black, (2, 1): black,
    }  # fmt: skip
    beside = [(small.layer, small.kv_head) for small in layout.pictures if view.is_beside_rows(picture, small)]
    assert beside == [(0, 2), (0, 3)], "these are no heads that could be chosen"
    assert [label.name for label in layout.labels if label.is_beside_rows] == ["L0 state"], "no largest K beside it"


@pytest.mark.parametrize(("lens", "dims"), [("keys", 24), ("values", 16), ("keys-norm", 1)])
def test_keys_and_values_of_a_layer_are_as_wide_as_each_is(lens: str, dims: int) -> None:
    (row,) = view.layer_rows(LayerGeometry(3, "full", 2, 24, 16, 8), None, LENSES[lens], 0)
    assert (row.layer, row.num_heads, row.dims) == (3, 2, dims)


def test_a_wall_of_notes_alone_has_no_thumbnails() -> None:
    layout = draw.arrange(tuple(WallRow(layer, 0, "nothing held") for layer in range(3)), 640, 200, MARGINS)
    assert not layout.pictures
    assert [label.note for label in layout.labels] == ["nothing held"] * 3


@pytest.mark.parametrize("columns", [1, 7, 57, 200])
def test_from_every_cell_to_its_pixels_and_back(columns: int) -> None:
    layout = draw.arrange(rows(2, 3), 500, 160, MARGINS)
    picture = slice_of(np.zeros((2, 3, columns, 4)))
    for small in layout.pictures:
        for column in range(columns):
            span = draw.column_span(small, picture, column)
            assert span is not None
            assert layout.hit(span[0], small.y) is small
            if columns <= small.width:
                assert {draw.position_at(small, picture, x) for x in range(*span)} == {column}
    assert draw.column_span(layout.pictures[0], picture, columns) is None
    assert layout.hit(2, 2) is None


@pytest.mark.parametrize(("num_tokens", "last"), [(40, 36), (38, 36), (37, 36)])
def test_a_column_that_pools_tokens_leads_to_the_first_of_them(num_tokens: int, last: int) -> None:
    picture = replace(slice_of(np.zeros((1, 2, 10, 4))), tokens_per_column=4, num_tokens=num_tokens)
    small = draw.arrange(rows(1, 2), 334, 60, MARGINS).pictures[1]
    found = [draw.position_at(small, picture, x) for x in range(small.x, small.x + small.width)]
    assert sorted(set(found)) == [*range(0, 36, 4), last]
    for position, columns in ((0, 0), (3, 0), (4, 1), (last, 9)):
        span = draw.column_span(small, picture, position)
        assert span is not None
        assert {draw.position_at(small, picture, x) for x in range(*span)} == {4 * columns}


def test_pixels_are_the_colours_of_their_cells_and_gaps_are_clear() -> None:
    values = np.zeros((1, 2, 10, 4))
    values[0, 1, 3, 2] = 1.0
    values[0, 0, 0, 0] = -1.0
    layout = draw.arrange(rows(1, 2), 334, 60, MARGINS)
    picture = painted(slice_of(values), layout, rows(1, 2))
    small = layout.picture_of(0, 1)
    assert small is not None
    lit = np.argwhere(picture == RED)
    start, stop = small.x + 3 * small.width // 10, small.x + 4 * small.width // 10
    assert lit[:, 1].min() == pytest.approx(start, abs=1)
    assert lit[:, 1].max() == pytest.approx(stop - 1, abs=1)
    assert lit[:, 0].min() >= small.y + small.height // 2
    assert (picture == BLUE).any()
    gap = layout.pictures[0].x + layout.picture_width
    assert (picture[:, gap] == 0).all()


def test_an_outlier_survives_a_picture_larger_than_its_place() -> None:
    values = np.zeros((1, 1, 5000, 128))
    values[0, 0, 3217, 77] = 9.0
    layout = draw.arrange(rows(1, 1), 130, 60, MARGINS)
    picture = painted(slice_of(values), layout, rows(1, 1))
    assert (picture == RED).sum() == 1


def test_a_nan_is_loud_and_an_absent_cell_is_clear() -> None:
    values = np.zeros((2, 1, 8, 4))
    values[0, 0, 5, 1] = np.nan
    values[1, 0, :3] = np.nan  # have left the window
    values[1, 0, :, 3] = np.nan  # this layer's rows are shorter
    wall_rows = (WallRow(0, 1, dims=4), WallRow(1, 1, dims=3))
    layout = draw.arrange(wall_rows, 200, 80, MARGINS)
    picture = replace(slice_of(values), held=np.array([[0, 8], [3, 8]]))
    _, absent = draw.cell_values(picture, wall_rows)
    assert not absent[0].any()
    assert absent[1, 0, :3].all()
    assert absent[1, 0, :, 3].all()
    assert not absent[1, 0, 3:, :3].any()
    pixels = painted(picture, layout, wall_rows)
    loud = np.argwhere(pixels == LOUD)
    first = layout.picture_of(0, 0)
    assert first is not None
    assert len(loud)
    assert (loud[:, 0] < first.y + first.height).all()


def test_a_nan_in_every_channel_of_the_oldest_row_in_a_window_is_loud_not_clear() -> None:
    values = np.zeros((1, 1, 6, 2))
    values[0, 0, :4] = np.nan  # of these the first two have left the window
    _, absent = draw.cell_values(replace(slice_of(values), held=np.array([[2, 6]])), (WallRow(0, 1, dims=2),))
    assert absent[0, 0].tolist() == [[True, True]] * 2 + [[False, False]] * 4


def told(*limits: float, largest: tuple[float, ...] = (), clipped: float = 0.0) -> Magnitudes:
    found = [np.array(part, np.float32) for part in (limits, largest or limits, [clipped] * len(limits))]
    return Magnitudes(*found)


def test_colours_span_what_the_engine_says_of_each_layer_and_nothing_that_is_drawn() -> None:
    picture = replace(slice_of(np.full((3, 2, 16, 8), 50.0)), magnitudes=told(1.0, 100.0, 0.0))
    assert draw.layer_limits(picture).tolist() == [1.0, 100.0, 1.0]
    assert draw.layer_limits(replace(picture, magnitudes=None)).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("width", "height"), [(300, 150), (620, 260), (945, 270), (2400, 900)])
@pytest.mark.parametrize(("per_column", "per_row"), [(1, 1), (8, 3), (58, 4)])
def test_a_channel_ten_times_larger_is_seen_at_every_size(
    width: int, height: int, per_column: int, per_row: int
) -> None:
    """Thirty layers, one channel of one of them planted; the same range whatever is pooled, as the engine tells it."""
    rng = np.random.default_rng(3)
    tokens = rng.normal(size=(30, 3, 464, 64)).astype(np.float32)
    tokens[17, 1, :, 40] *= 10
    shape = (30, 3, 464 // per_column, per_column, 64 // per_row, per_row)
    cells = tokens[:, :, : shape[2] * per_column, : shape[4] * per_row].reshape(shape)
    low, high = cells.min((3, 5)), cells.max((3, 5))
    limits = np.quantile(np.abs(tokens.reshape(30, -1)), 0.995, axis=1)
    largest = np.abs(tokens.reshape(30, -1)).max(1)
    picture = replace(
        slice_of(low, per_column, per_row), high=high, magnitudes=told(*limits, largest=tuple(largest), clipped=0.005)
    )
    wall_rows = rows(30, 3)
    layout = draw.arrange(wall_rows, width, height, MARGINS)
    values, absent = draw.cell_values(picture, wall_rows)
    pixels = draw.paint(layout, picture, values, absent, draw.layer_limits(picture), SCALE, far=0xFFFFFFFF)
    line = np.argwhere(pixels == 0xFFFFFFFF)
    small = layout.picture_of(17, 1)
    assert small is not None
    assert draw.marked_heads(picture, values, absent) == (frozenset(), {(17, 1)})
    assert ((line[:, 0] >= small.y) & (line[:, 0] < small.y + small.height)).all()  # nowhere else
    columns = np.unique(line[:, 1])
    assert columns.min() >= small.x
    assert columns.max() < small.x + small.width
    assert len(columns) > small.width * 0.4  # a line through the thumbnail, not a speck
    assert max(draw.times_range(picture), key=draw.times_range(picture).__getitem__) == 17


def test_the_largest_of_a_layer_in_words() -> None:
    picture = replace(slice_of(np.ones((2, 1, 4, 4))), magnitudes=told(2.1, 1.0, largest=(8.6, 1.2), clipped=0.0052))
    assert draw.magnitude_words(picture, 0) == "max |K| 8.60 · 4.1× the range ±2.10 · 0.52 % of the layer beyond it"
    assert draw.magnitude_words(picture, 7) == ""
    assert draw.times_range(picture) == pytest.approx({0: 4.095, 1: 1.2}, rel=1e-3)


def test_a_layer_of_zeros_has_no_ratio_and_is_drawn_as_zero() -> None:
    values = np.zeros((2, 1, 4, 4))
    picture = replace(slice_of(values), magnitudes=told(0.0, 0.0, largest=(0.0, 0.0)))
    assert draw.times_range(picture) == {}
    assert draw.farthest(picture) is None
    assert draw.magnitude_words(picture, 0) == "no finite K other than zero"
    layout, wall_rows = draw.arrange(rows(2, 1), 200, 90, MARGINS), rows(2, 1)
    shown, absent = draw.cell_values(picture, wall_rows)
    assert draw.marked_heads(picture, shown, absent) == (frozenset(), frozenset())
    pixels = draw.paint(layout, picture, shown, absent, draw.layer_limits(picture), SCALE)
    assert {int(pixels[t.y + 2, t.x + 2]) for t in layout.pictures} == {0xFF000000}


def test_a_nan_or_a_dropped_row_is_not_far() -> None:
    values = np.zeros((1, 2, 4, 4))
    values[0, 0, 1, 1], values[0, 1, 2] = np.nan, 50.0
    picture = replace(slice_of(values), magnitudes=told(1.0))
    gone = np.zeros(values.shape, np.bool_)
    gone[0, 1, 2] = True
    assert draw.marked_heads(picture, values.astype(np.float32), gone) == ({(0, 0)}, frozenset())
    assert draw.marked_heads(picture, values.astype(np.float32), np.zeros_like(gone)) == ({(0, 0)}, {(0, 1)})


@pytest.mark.parametrize(("count", "size"), [(7, 20), (20, 7), (5, 5), (1000, 33)])
def test_resampling_keeps_the_extremes_of_every_cell(count: int, size: int) -> None:
    rng = np.random.default_rng(count)
    values = rng.normal(size=(3, count)).astype(np.float32)
    low, high = pool.resample(values, values, size, 1)
    assert low.shape == high.shape == (3, size)
    assert (low.min(axis=1) == values.min(axis=1)).all()
    assert (high.max(axis=1) == values.max(axis=1)).all()
    for pixel in range(size):
        assert 0 <= pool.cell_at(pixel, count, size) < count


def test_outside_the_positions_that_a_layer_holds_its_cells_are_empty() -> None:
    """Cells of two positions: one that is held in part is a cell of numbers at either end."""
    picture = slice_of(np.ones((1, 1, 6, 2)), per_column=2)
    for held, empty in (((4, 12), [0, 1]), ((0, 5), [3, 4, 5]), ((3, 9), [0, 5]), ((0, 12), [])):
        _, absent = draw.cell_values(replace(picture, held=np.array([held])), rows(1, 1))
        assert np.flatnonzero(absent[0, 0].all(axis=1)).tolist() == empty
        assert np.flatnonzero(absent[0, 0].any(axis=1)).tolist() == empty
