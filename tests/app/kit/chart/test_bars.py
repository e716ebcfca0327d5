"""Rows of bars under the mouse."""

from __future__ import annotations

import pytest
from pytestqt.qtbot import QtBot

from app.kit.chart.bars import _HEADER, BarRow, BarRows, BarTable


@pytest.mark.parametrize(("place", "key"), [(-0.5, None), (0.5, "a"), (1.5, "b"), (2.5, "c"), (3.5, None)])
def test_a_row_is_found_where_it_is_painted(qtbot: QtBot, place: float, key: str | None) -> None:
    """Below the heads of the columns, which are no row."""
    bars = BarRows("some", least=15.0)
    qtbot.addWidget(bars)
    bars.resize(300, 200)
    bars.show_table(BarTable(("", "x"), tuple(BarRow(name, (), "", key=name) for name in "abc")))
    found = bars.row_at(_HEADER + place * bars.row_height)
    assert (found.key if found is not None else None) == key
