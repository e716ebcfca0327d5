"""Where chips stand, and which of them is above or below another: the one under its middle."""

from __future__ import annotations

from app.panels.tokens.draw import GAP, ChipLayout, Place


def layout(*widths: float, width: int = 100) -> ChipLayout:
    made = ChipLayout()
    made.width = width
    made.extend(widths)
    return made


def test_the_chip_under_the_middle_of_another_is_below_it() -> None:
    found = layout(60 - GAP, 40, 50 - GAP, 50)
    assert [found[index] for index in range(4)] == [
        Place(0, 60 - GAP, 0), Place(60, 40, 0), Place(0, 50 - GAP, 1), Place(50, 50, 1),
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
