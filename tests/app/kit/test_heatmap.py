"""A heat map under mouse and keys: what of the positions it asks to see."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.draw.grid import TokenRange
from app.draw.matrix import Matrix, MatrixRow
from app.kit.heatmap import HeatMap, Marks
from app.kit.painting import color_scale
from app.kit.theme import DARK, load_fonts
from tests.app.mouse import move_mouse, turn_wheel

LEFT, SHIFT = Qt.MouseButton.LeftButton, Qt.KeyboardModifier.ShiftModifier


@pytest.fixture
def asked() -> list[TokenRange | None]:
    """Every range that was asked for."""
    return []


@pytest.fixture
def heat_map(qtbot: QtBot, qapp: QApplication, asked: list[TokenRange | None]) -> HeatMap:
    """Positions 0 … 100, of which 40 … 60 are visible."""
    load_fonts()
    heat_map = HeatMap(str)
    qtbot.addWidget(heat_map)
    heat_map.resize(431, 200)
    heat_map.show()
    show(heat_map, 8, 0, 100)
    heat_map.show_range(TokenRange(40, 60))
    heat_map.zoomed.connect(asked.append)
    heat_map.zoomed.connect(heat_map.show_range)
    return heat_map


def show(heat_map: HeatMap, rows: int, start: int, stop: int, marks: Marks | None = None, **given: bool) -> None:
    """Show rows of the same colour with the numbers 0, 1, 2 …"""
    values = np.arange(rows * (stop - start), dtype=np.float32).reshape(rows, -1)
    places = tuple(MatrixRow(0, row) for row in range(rows))
    matrix = Matrix(values, values, start, stop, 1, places, (), str, (start, stop))
    colors = np.zeros(values.shape, np.uint8)
    heat_map.show_matrix(matrix, color_scale(DARK, is_signed=True), colors, marks or Marks(), **given)


def at(heat_map: HeatMap, position: float) -> QPointF:
    plot, (low, high) = heat_map.plot_rect, heat_map.visible_range
    return QPointF(plot.left() + (position - low) / (high - low) * plot.width(), plot.center().y())


@pytest.mark.parametrize(
    ("turn", "visible"),
    [
        (lambda it: turn_wheel(it, at(it, 50), 1), (42, 58)),  # closer, around the cursor
        (lambda it: turn_wheel(it, at(it, 40), 1), (40, 56)),
        (lambda it: turn_wheel(it, at(it, 50), -1), (37.5, 62.5)),
        (lambda it: turn_wheel(it, at(it, 50), 1, SHIFT), (38, 58)),  # aside, up to the left
        (lambda it: turn_wheel(it, at(it, 50), -2, SHIFT), (44, 64)),
        (lambda it: turn_wheel(it, at(it, 50), 99, SHIFT), (0, 20)),  # no further than there is anything
    ],
)
def test_the_wheel_zooms_and_with_shift_goes_aside(
    heat_map: HeatMap, turn: Callable[[HeatMap], None], visible: tuple[float, float]
) -> None:
    turn(heat_map)
    assert heat_map.visible_range == pytest.approx(visible, abs=0.1)


@pytest.mark.parametrize(
    ("key", "visible"),
    [
        (Qt.Key.Key_Plus, (42, 58)),
        (Qt.Key.Key_Minus, (37.5, 62.5)),
        (Qt.Key.Key_F, (80, 100)),
        (Qt.Key.Key_Home, (0, 100)),
    ],
)
def test_keys_zoom_around_the_middle(
    qtbot: QtBot, heat_map: HeatMap, key: Qt.Key, visible: tuple[float, float]
) -> None:
    qtbot.keyClick(heat_map, key)
    assert heat_map.visible_range == pytest.approx(visible)


def test_a_drag_takes_the_positions_along_and_a_click_picks_one(
    qtbot: QtBot, heat_map: HeatMap, asked: list[TokenRange | None]
) -> None:
    picked: list[QPointF] = []
    heat_map.picked.connect(picked.append)
    start = at(heat_map, 50).toPoint()
    per_position = heat_map.plot_rect.width() / 20
    qtbot.mousePress(heat_map, LEFT, pos=start)
    for moved in (3, 5):  # from where it began, however many moves there were
        move_mouse(heat_map, start + QPoint(round(moved * per_position), 0), LEFT)
    assert heat_map.visible_range == pytest.approx((35, 55), abs=0.1)
    qtbot.mouseRelease(heat_map, LEFT, pos=start + QPoint(round(5 * per_position), 0))
    assert picked == []
    num_asked = len(asked)
    qtbot.mouseClick(heat_map, LEFT, pos=at(heat_map, 36.5).toPoint())
    assert [round(point.x(), 1) for point in picked] == [pytest.approx(36.5, abs=0.1)]
    assert len(asked) == num_asked


@pytest.mark.parametrize(("has_range", "visible"), [(True, (80, 100)), (False, (36, 100))])
def test_following_keeps_the_length_that_is_visible_or_takes_the_last_64(
    heat_map: HeatMap, asked: list[TokenRange | None], has_range: bool, visible: tuple[float, float]
) -> None:
    if not has_range:
        heat_map.reset_view()
    heat_map.follow_newest()
    assert asked[-1] == TokenRange(*visible, follows=True)
    show(heat_map, 8, 0, 110)
    assert heat_map.visible_range == (visible[0] + 10, 110)


def painted(heat_map: HeatMap, start: int, marks: Marks | None = None, **given: bool) -> np.ndarray:
    """The picture alone, grey, of eight cells from a position on."""
    show(heat_map, 4, start, start + 8, marks, **given)
    heat_map.show_range(None)
    plot = heat_map.plot_rect.toRect()
    image = heat_map.grab(plot.adjusted(-6, 0, 0, 0)).toImage().convertToFormat(QImage.Format.Format_Grayscale8)
    stride = image.bytesPerLine()
    return np.frombuffer(image.constBits(), np.uint8).reshape(image.height(), stride)[:, : image.width()].copy()


def test_numbers_stand_in_their_cells_wherever_the_picture_begins(heat_map: HeatMap) -> None:
    found = [painted(heat_map, start, has_numbers=True) for start in (0, 64)]
    assert np.array_equal(*found)
    assert not np.array_equal(found[0], painted(heat_map, 0))


@pytest.mark.parametrize("row", [0, 3])
def test_the_wedges_of_a_selected_row_point_at_its_middle(heat_map: HeatMap, row: int) -> None:
    plain, marked = painted(heat_map, 0), painted(heat_map, 0, Marks(selected_row=row))
    rows = np.flatnonzero((plain != marked).any(axis=1))
    assert (rows.min() + rows.max()) / 2 == pytest.approx((row + 0.5) * len(plain) / 4, abs=1.5)
