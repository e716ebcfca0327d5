"""Rows of bars under the mouse."""

from __future__ import annotations

import pytest
from PySide6.QtGui import QFontMetricsF
from pytestqt.qtbot import QtBot

from app.kit.chart.bars import _HEADER, Bar, BarRow, BarRows, BarTable
from app.kit.theme import font_fixed
from tests.app.painted import painted


@pytest.mark.parametrize(("place", "key"), [(-0.5, None), (0.5, "a"), (1.5, "b"), (2.5, "c"), (3.5, None)])
def test_a_row_is_found_where_it_is_painted(qtbot: QtBot, place: float, key: str | None) -> None:
    """Below the heads of the columns, which are no row."""
    bars = BarRows("some", least=15.0)
    qtbot.addWidget(bars)
    bars.resize(300, 200)
    bars.show_table(BarTable(("", "x"), tuple(BarRow(name, (), "", key=name) for name in "abc")))
    found = bars.row_at(_HEADER + place * bars.row_height)
    assert (found.key if found is not None else None) == key


@pytest.mark.parametrize("width", [150, 190, 230, 300])
def test_a_number_is_whole_however_narrow_the_chart_is(qtbot: QtBot, width: int) -> None:
    """The bars give way to it, then the names, then the words at the end."""
    bars = BarRows("some", least=15.0)
    qtbot.addWidget(bars)
    bars.resize(width, 100)
    row = BarRow("·something", (Bar(0.2, "20.6 %", "accent"), Bar(1.0, ">99.9 %", "accent")), "", end="1 → 32")
    bars.show_table(BarTable(("", "before", "after", "rank"), (row,)))
    needed = QFontMetricsF(font_fixed(11.5)).horizontalAdvance(">99.9 %")
    (_, name), *places, (end, _) = bars._columns()
    assert name >= 26
    assert min(wide for _, wide in places) >= needed
    assert name <= places[0][0]
    assert sum(places[0]) <= places[1][0]
    assert sum(places[1]) <= end


def test_rows_without_room_for_all_names_name_the_marked_and_as_many_others_as_stand_apart(qtbot: QtBot) -> None:
    bars = BarRows("some", least=4.0)
    qtbot.addWidget(bars)
    bars.resize(200, 60)
    rows = tuple(BarRow(f"n{index}", (Bar(0.5, "", "accent"),), "", is_marked=index == 7) for index in range(12))
    bars.show_table(BarTable(("", "x"), rows))
    assert bars.row_height == 4.0
    words = " ".join(line for line in painted(bars) if line.startswith("text"))
    assert [index for index in range(12) if f"‹n{index}›" in words] == [0, 3, 7, 10]
