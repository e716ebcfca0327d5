"""The range of colours by wheel and keys: up the wheel comes closer, up the keys reaches farther."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from pytestqt.qtbot import QtBot

from app.kit.map_view import RangeBar
from app.kit.painting import color_scale
from app.kit.theme import DARK
from tests.app.mouse import turn_wheel
from tests.app.painted import shapes

MIDDLE = QPointF(20, 50)


@pytest.mark.parametrize(
    ("turn", "limit"),
    [
        (lambda bar, bot: turn_wheel(bar, MIDDLE, 1), 1 / 1.1),
        (lambda bar, bot: turn_wheel(bar, MIDDLE, -2), 1.1**2),
        (lambda bar, bot: bot.keyClick(bar, Qt.Key.Key_Up), 1.1),
        (lambda bar, bot: bot.keyClick(bar, Qt.Key.Key_Down), 1 / 1.1),
    ],
)
def test_wheel_and_keys_change_the_range(qtbot: QtBot, turn: Callable[[RangeBar, QtBot], None], limit: float) -> None:
    bar = RangeBar()
    qtbot.addWidget(bar)
    bar.resize(bar.width(), 100)
    told: list[float] = []
    bar.dragged.connect(told.append)
    turn(bar, qtbot)
    assert told == [pytest.approx(limit)]


def test_the_range_of_magnitudes_has_one_end_and_begins_at_zero(qtbot: QtBot) -> None:
    bar = RangeBar()
    qtbot.addWidget(bar)
    bar.resize(bar.width(), 118)
    bar.show_range(color_scale(DARK, is_signed=False), None, 4.0)
    told: list[float] = []
    bar.dragged.connect(told.append)
    assert [shape.text for shape in shapes(bar) if shape.text] == ["4.0", "0"]
    qtbot.mousePress(bar, Qt.MouseButton.LeftButton, pos=QPoint(4, 59))
    assert told == [pytest.approx(2.5)], "the middle of 0 … 5"
