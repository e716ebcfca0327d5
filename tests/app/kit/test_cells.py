"""Tables of numbers: how wide columns are, what is spanned, on which side words and numbers stand, and their tips."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.kit.cells import CellModel, CellTable, ColumnHead, TableCell, with_arrow
from app.kit.theme import current_theme

HEADS = (ColumnHead("name", "what it is called", is_words=True), ColumnHead("count", "how many"), ColumnHead("size"))
ROWS = (
    (TableCell("one"), TableCell("1", "warning", "a tip", is_bold=True), TableCell("2 KiB")),
    (TableCell("two"), TableCell("not known: nobody asked", "muted", is_wide=True), TableCell("")),
)
Show = Callable[..., CellTable]


@pytest.fixture
def show(qtbot: QtBot) -> Show:
    def shown(heads: tuple[ColumnHead, ...], width: int = 400) -> CellTable:
        table = CellTable("A table")
        qtbot.addWidget(table)
        table.resize(width, 120)
        table.show_cells(heads, ROWS)
        table.show()
        QApplication.processEvents()
        return table

    return shown


def widths(table: CellTable) -> list[int]:
    return [table.columnWidth(column) for column in range(len(HEADS))]


def test_room_that_is_left_is_shared_unless_a_column_takes_it_all(show: Show) -> None:
    room = 400 - 2
    shared = widths(show(HEADS))
    needed = show(HEADS).needed_widths()
    more = [wide - needed for wide, needed in zip(shared, needed, strict=True)]
    assert len(set(more)) == 1
    assert 0 <= room - sum(shared) < len(HEADS)
    taking = (*HEADS[:2], ColumnHead("size", takes_rest=True))
    assert widths(show(taking)) == [*needed[:2], room - sum(needed[:2])]


def test_columns_move_together_before_the_last_one_is_cut(show: Show) -> None:
    long = tuple(ColumnHead("n", is_words=head.is_words) for head in HEADS)
    needed = show(long).needed_widths()
    table = show(long, sum(needed) - 1)
    assert sum(widths(table)) <= table.viewport().width()
    assert not table.horizontalScrollBar().isVisible()
    closest = [need - wide for wide, need in zip(widths(show(long, 60)), needed, strict=True)]
    assert 0 < max(closest) <= 4, "numbers stay apart"
    assert widths(show(HEADS, 60))[1] == show(HEADS).needed_widths()[1], "its heading is longer than its numbers"


def test_wide_words_take_the_rest_of_their_row_and_nothing_else_is_spanned(show: Show) -> None:
    table = show(HEADS)
    assert [[table.columnSpan(row, column) for column in (0, 1)] for row in (0, 1)] == [[1, 1], [1, 2]]
    assert [table.rowSpan(row, 1) for row in (0, 1)] == [1, 1]
    table.show_cells(HEADS, ROWS[:1])
    assert table.columnSpan(0, 1) == 1


def test_words_stand_left_numbers_right_and_each_has_its_tip_and_colour(show: Show) -> None:
    table = show(HEADS)
    cells = table.cells
    left, right = (
        side | Qt.AlignmentFlag.AlignVCenter for side in (Qt.AlignmentFlag.AlignLeft, Qt.AlignmentFlag.AlignRight)
    )
    role = Qt.ItemDataRole
    sides = [[cells.index(row, column).data(role.TextAlignmentRole) for column in (0, 1)] for row in (0, 1)]
    assert sides == [[left, right], [left, left]]
    assert [cells.headerData(n, Qt.Orientation.Horizontal, role.TextAlignmentRole) for n in (0, 1)] == [left, right]
    assert "how many" in cells.headerData(1, Qt.Orientation.Horizontal, role.ToolTipRole)
    warned = cells.index(0, 1)
    assert "a tip" in warned.data(role.ToolTipRole)
    assert warned.data(role.ForegroundRole) == current_theme().color("warning")
    assert [cells.index(0, column).data(role.FontRole).bold() for column in (0, 1)] == [False, True]
    assert "one\nwhat it is called" in cells.index(0, 0).data(role.ToolTipRole), "where a cell has no tip of its own"
    assert "not known: nobody asked" in cells.index(1, 1).data(role.ToolTipRole)
    more = [(TableCell("three"), TableCell("3"), TableCell(""))]
    cells.set_cells(HEADS, more)
    assert "how many" in cells.index(0, 1).data(role.ToolTipRole)
    assert cells.index(0, 2).data(role.ToolTipRole) == "", "an empty cell tells nothing"


def test_a_sorted_column_has_an_arrow() -> None:
    assert [head.text for head in with_arrow(HEADS, 1, is_descending=True)] == ["name", "count ↓", "size"]
    assert [head.text for head in with_arrow(HEADS, 2, is_descending=False)] == ["name", "count", "size ↑"]
    assert with_arrow(HEADS, -1, is_descending=True) == list(HEADS)


def test_other_rows_leave_the_place_that_was_scrolled_to(show: Show) -> None:
    table = show(HEADS, 90)
    table.show_cells(HEADS, ROWS * 20)
    QApplication.processEvents()
    across, down = table.horizontalScrollBar(), table.verticalScrollBar()
    across.setValue(30)
    down.setValue(7)
    assert down.value() == 7
    table.show_cells(HEADS, (*ROWS * 20, ROWS[0]))
    QApplication.processEvents()
    assert (across.value(), down.value()) == (30, 7)


def test_a_row_that_differs_is_reported_from_its_first_column_to_its_last_and_no_other(qapp: QApplication) -> None:
    model, told = CellModel(), list[tuple[int, int, int, int]]()
    rows = [[TableCell(f"{number}.{column}") for column in range(3)] for number in range(3)]
    model.set_cells(HEADS[:3], rows)
    model.dataChanged.connect(lambda a, b, *_: told.append((a.row(), a.column(), b.row(), b.column())))
    rows[1][2] = TableCell("other")
    assert model.set_cells(HEADS[:3], rows)
    assert told == [(1, 0, 1, 2)]
    assert not model.set_cells(HEADS[:3], rows)


def test_words_that_span_a_row_are_shortened_by_whole_parts(qtbot: QtBot) -> None:
    def painted(words: str) -> QImage:
        table = CellTable("A table")
        qtbot.addWidget(table)
        table.resize(180, 60)
        table.show_cells(HEADS, [(TableCell("two"), TableCell(words, "muted", is_wide=True), TableCell(""))])
        return table.grab().toImage()

    assert painted("not known: nobody asked, or there was none") == painted("not known")
