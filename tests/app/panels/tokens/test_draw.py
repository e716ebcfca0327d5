"""Where chips stand, and which of them is above or below another: the one under its middle."""

from __future__ import annotations

from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.models import Models
from app.panels.tokens import GAP, ChipLayout, ChipPlace, Chips, TokenCanvas
from tests.app import samples


def layout(*widths: float, width: int = 100) -> ChipLayout:
    made = ChipLayout()
    made.width = width
    made.extend(widths)
    return made


def test_the_chip_under_the_middle_of_another_is_below_it() -> None:
    found = layout(60 - GAP, 40, 50 - GAP, 50)
    assert [found[index] for index in range(4)] == [
        ChipPlace(0, 60 - GAP, 0), ChipPlace(60, 40, 0), ChipPlace(0, 50 - GAP, 1), ChipPlace(50, 50, 1),
    ]  # fmt: skip
    assert [found.beside(index, +1) for index in range(4)] == [2, 3, 2, 3]
    assert [found.beside(index, -1) for index in range(4)] == [0, 1, 0, 1]
    uneven = layout(40 - GAP, 60, 50 - GAP, 50)
    assert [uneven.beside(index, +1) for index in (0, 1)] == [2, 3], "70 is the middle of the second, and 40 its start"


def test_a_row_that_was_cut_is_filled_again() -> None:
    found = layout(60, 60, 60)
    assert (found.num_rows, list(found.in_rows(1, 2))) == (3, [1, 2])
    found.truncate(1)
    assert (len(found), found.num_rows) == (1, 1)
    found.extend((30, 60))
    assert [found[index].row for index in range(3)] == [0, 0, 1]
    found.truncate(0)
    assert (len(found), found.num_rows) == (0, 1)


def test_shift_moves_the_end_of_an_area_and_never_before_its_beginning(qtbot: QtBot, models: Models) -> None:
    models.timeline.append(samples.story(9))
    strip = TokenCanvas()
    qtbot.addWidget(strip)
    strip.resize(300, 200)
    dragged: list[tuple[int, int]] = []
    strip.dragged.connect(lambda start, stop: dragged.append((start, stop)))
    tokens, shift = models.timeline.tokens(0), Qt.KeyboardModifier.ShiftModifier
    for area, key in (
        (None, Qt.Key.Key_Right),
        ((5, 8), Qt.Key.Key_Left),
        (None, Qt.Key.Key_Left),
        (None, Qt.Key.Key_End),
    ):
        strip.show_chips(Chips(tokens, selected=5, area=area))
        qtbot.keyClick(strip, key, shift)
    assert dragged == [(5, 7), (5, 7), (5, 6), (5, len(tokens))]
