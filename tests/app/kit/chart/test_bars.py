"""Rows of bars under the mouse."""

from __future__ import annotations

from itertools import pairwise

import pytest
from PySide6.QtGui import QFontMetricsF
from pytestqt.qtbot import QtBot

from app.kit.bars import Bar, BarRow, BarRows, BarTable
from app.kit.theme import font_fixed
from tests.app.painted import painted, shapes


def test_a_row_is_found_where_it_is_painted(qtbot: QtBot) -> None:
    """Below the heads of the columns, which are no row."""
    bars = BarRows("some", least=15.0)
    qtbot.addWidget(bars)
    bars.resize(300, 200)
    bars.show_table(BarTable(("", "x"), tuple(BarRow(name, (Bar(0.5, "", "accent"),), "", key=name) for name in "abc")))
    heights = {shape.text: shape.place[1] - 3 for shape in shapes(bars) if shape.text}  # the letters stand on it
    found = {text: bars.row_at(y) for text, y in (*heights.items(), ("below", heights["c"] + bars.row_height))}
    assert {text: row and row.key for text, row in found.items()} == {
        "x": None, "a": "a", "b": "b", "c": "c", "below": None,
    }  # fmt: skip


@pytest.mark.parametrize("width", [150, 190, 230, 300])
def test_a_number_is_whole_however_narrow_the_chart_is(qtbot: QtBot, width: int) -> None:
    """The bars give way to it, then the names, then the words at the end."""
    bars = BarRows("some", least=15.0)
    qtbot.addWidget(bars)
    bars.resize(width, 100)
    row = BarRow("·something", (Bar(0.2, "20.6 %", "accent"), Bar(1.0, ">99.9 %", "accent")), "", end="1 → 32")
    bars.show_table(BarTable(("", "before", "after", "rank"), (row,)))
    advance = QFontMetricsF(font_fixed(11.5)).horizontalAdvance
    y = max(shape.place[1] for shape in shapes(bars) if shape.text)
    texts = sorted((shape.place[0], shape.text) for shape in shapes(bars) if shape.text and shape.place[1] == y)
    assert texts[0][1].startswith("·s")
    assert [text for _, text in texts[1:3]] == ["20.6 %", ">99.9 %"]
    assert all(x + advance(text) <= other for (x, text), (other, _) in pairwise(texts))


def test_rows_without_room_for_all_names_name_the_marked_and_as_many_others_as_stand_apart(qtbot: QtBot) -> None:
    bars = BarRows("some", least=4.0)
    qtbot.addWidget(bars)
    bars.resize(200, 60)
    rows = tuple(BarRow(f"n{index}", (Bar(0.5, "", "accent"),), "", is_marked=index == 7) for index in range(12))
    bars.show_table(BarTable(("", "x"), rows))
    assert bars.row_height == 4.0
    words = " ".join(line for line in painted(bars) if line.startswith("text"))
    assert [index for index in range(12) if f"‹n{index}›" in words] == [0, 3, 7, 10]
