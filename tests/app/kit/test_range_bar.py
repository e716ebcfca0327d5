"""The range of colours by wheel and keys: up the wheel comes closer, up the keys reaches farther."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from PySide6.QtCore import QPointF, Qt
from pytestqt.qtbot import QtBot

from app.kit.range_bar import RangeBar
from tests.app.mouse import turn_wheel

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
