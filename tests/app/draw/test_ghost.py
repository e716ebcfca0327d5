"""Ghosts of dropped rows: empty, hatched, and never mistaken for a zero, a window's edge or a NaN."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from app.draw import ghost
from app.draw.colormap import ColorScale, signed_table
from app.draw.ghost import Ghosts, Hatch
from app.draw.matrix import matrix_of
from app.panels import attention
from app.panels.head import readout
from app.panels.wall import draw as wall
from app.panels.wall.draw import Margins, WallRow
from engine.wire.pictures import AttentionPicture, AttentionRequest, HeadPicture, HeadRequest, WallPicture, WallRequest

SCALE = ColorScale(signed_table("#0000ff", "#000000", "#ff0000", "#ff00ff"), is_signed=True)
BLACK, LOUD, LINE, GROUND = 0xFF000000, 0xFFFF00FF, 0xFF00FF00, 0xFF123456
HATCH = Hatch(LINE, GROUND, 4)
MARGINS = Margins(left=30, top=16, gap=4, block_gap=16, note=13)


def wall_picture(values: np.ndarray, absent: np.ndarray | None, per_column: int = 1, tokens: int = 0) -> WallPicture:
    layers, heads, columns, rows = values.shape
    tokens = tokens or columns * per_column
    values = values.astype(np.float32)
    return WallPicture(
        WallRequest(0, tokens, 0, "keys", False, columns, rows), "live cache", "float32", tuple(range(layers)),
        (heads,) * layers, values, values, tokens, per_column, 1, "", 0.0, absent,
    )  # fmt: skip


def painted(picture: WallPicture, width: int = 430) -> tuple[np.ndarray, wall.WallLayout]:
    rows = tuple(WallRow(layer, picture.heads[0], "", picture.low.shape[3]) for layer in picture.layers)
    layout = wall.arrange(rows, width, 120, MARGINS)
    values, absent = wall.cell_values(picture, rows)
    limits = np.ones(len(picture.layers), np.float32)
    return wall.paint(layout, picture, values, absent, limits, SCALE, HATCH), layout


def columns_of(
    picture: np.ndarray, layout: wall.WallLayout, kv_head: int, first: int, stop: int, of: int
) -> np.ndarray:
    small = layout.picture_of(0, kv_head)
    assert small is not None
    across = slice(small.x + -(-first * small.width // of), small.x + -(-stop * small.width // of))
    return picture[small.y : small.y + small.height, across]


def test_the_share_of_the_last_column_counts_its_own_positions() -> None:
    np.testing.assert_allclose(ghost.shares(np.array([4, 2, 0, 1]), 4, 13), [1, 0.5, 0, 1])
    assert ghost.shares(np.zeros((2, 0), np.int64), 4, 0).shape == (2, 0)


def test_a_dropped_column_is_hatched_and_a_zero_is_not() -> None:
    values = np.zeros((1, 2, 10, 4))
    values[0, 0, 2:5] = np.nan
    absent = np.zeros((1, 2, 10), np.int64)
    absent[0, 0, 2:5] = 1
    picture, layout = painted(wall_picture(values, absent))
    gone = columns_of(picture, layout, 0, 2, 5, 10)
    assert set(np.unique(gone)) == {0, LINE}  # clear ground and lines: no colour of the map
    assert 0.15 < (gone == LINE).mean() < 0.35
    assert set(np.unique(columns_of(picture, layout, 0, 5, 10, 10))) == {BLACK}
    assert set(np.unique(columns_of(picture, layout, 1, 0, 10, 10))) == {BLACK}


def test_a_nan_beside_ghosts_stays_loud() -> None:
    values = np.zeros((1, 1, 10, 4))
    values[0, 0, 2] = np.nan
    values[0, 0, 7, 1] = np.nan
    absent = np.zeros((1, 1, 10), np.int64)
    absent[0, 0, 2] = 1
    picture = wall_picture(values, absent)
    pixels, layout = painted(picture)
    assert (columns_of(pixels, layout, 0, 7, 8, 10) == LOUD).any()
    assert not (columns_of(pixels, layout, 0, 2, 3, 10) == LOUD).any()
    shown, empty = wall.cell_values(picture, (WallRow(0, 1, "", 4),))
    assert int((~np.isfinite(shown) & ~empty).sum()) == 1


def test_a_pooled_column_is_hatched_from_its_foot_as_far_as_rows_went() -> None:
    values = np.ones((1, 1, 4, 4))
    absent = np.array([[[0, 1, 2, 3]]])
    picture, layout = painted(wall_picture(values, absent, per_column=4))
    for column, share in enumerate((0, 0.25, 0.5, 0.75)):
        part = columns_of(picture, layout, 0, column, column + 1, 4)
        rows = np.flatnonzero((part == LINE).any(axis=1))
        assert len(rows) == pytest.approx(share * part.shape[0], abs=1)
        assert not len(rows) or rows[-1] == part.shape[0] - 1
        assert (part != 0).all()  # what is held is still seen between the lines


def test_a_picture_made_for_a_larger_window_hides_no_row_behind_a_ghost() -> None:
    values = np.full((1, 1, 800, 4), np.nan)
    absent = np.ones((1, 1, 800), np.int64)
    values[0, 0, 400], absent[0, 0, 400] = 1.0, 0
    picture, layout = painted(wall_picture(values, absent), width=430)
    assert layout.picture_width < 800
    assert not (picture == LOUD).any()
    assert (picture == 0xFFFF0000).any()


def head_picture(low: np.ndarray, absent: np.ndarray, per_column: int = 1) -> HeadPicture:
    columns = low.shape[0]
    low = low.astype(np.float32)
    return HeadPicture(
        HeadRequest(0, columns * per_column, "keys", 3, 1, 0, columns * per_column, columns), "live cache",
        "float32", low, low, np.arange(columns) * per_column, per_column, np.zeros(4, np.int64),
        np.linspace(-1, 1, 5).astype(np.float32), 1.0, 0.0, 1.0, 0, 0, (2, 3), "K", "", 0.0, absent,
    )  # fmt: skip


def test_the_readout_of_a_ghost_names_the_place_and_no_value() -> None:
    low = np.ones((6, 4))
    low[2] = np.nan
    picture = head_picture(low, np.array([0, 0, 1, 0, 0, 0]))
    cell = matrix_of(picture).at(2.5, 1)
    assert cell is not None
    assert cell.is_gone
    assert readout(picture, cell) == "K[3, 1, 2, 1]"
    assert matrix_of(picture).is_gone.tolist() == [[False, False, True, False, False, False]] * 4
    other = matrix_of(picture).at(3.5, 1)
    assert other is not None
    assert not other.is_gone
    assert "= 1" in readout(picture, other)
    assert matrix_of(replace(picture, absent=None)).gone is None


def test_attention_tells_a_ghost_from_a_nan() -> None:
    weights = np.array([[0.5, np.nan, 0.5], [np.nan, np.nan, np.nan]], np.float32)
    absent = np.array([[0, 1, 0], [0, 0, 0]])
    picture = AttentionPicture(
        AttentionRequest(0, 4, 0, 64), "recorded", weights, np.arange(3), 1, 1, 2, "", 0.0, absent
    )
    assert matrix_of(picture).is_gone.tolist() == [[False, True, False], [False] * 3]
    indices = attention.attention_indices(picture, attention.LINEAR)
    assert indices[0].tolist() == [127, 0, 127]
    assert indices[1].tolist() == [255] * 3


def test_an_overlay_covers_what_is_gone_and_nothing_else() -> None:
    share = np.array([[0, 1, 0.5], [0, 0, 0]], np.float32)
    found = ghost.overlay(Ghosts(share, 10.0, 2), 8.0, 16.0, 80, 40, HATCH)
    assert found is not None
    assert (found[:, :40] == 0).all()  # before the picture, and its first column
    assert set(np.unique(found[:20, 40:60])) == {LINE, GROUND}
    assert set(np.unique(found[:10, 60:])) == {0}
    assert set(np.unique(found[11:20, 60:])) == {0, LINE}
    assert (found[20:] == 0).all()  # the other head holds everything
    assert ghost.overlay(Ghosts(share, 10.0, 2), 10.0, 12.0, 80, 40, HATCH) is None
