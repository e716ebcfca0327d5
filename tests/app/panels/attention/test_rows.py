"""Words beside the rows of attention: each mass at its name, and no half entry."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QRectF
from PySide6.QtWidgets import QApplication

from app.panels.attention import HeadMass, MassBars, whole_entries


def test_each_mass_stands_at_its_name(qapp: QApplication) -> None:
    bars = MassBars()
    bars.show_masses((HeadMass(0, 0.25, 0.5), HeadMass(1, 0.75, 0.125)), QRectF(0, 0, 90, 60))
    bars.describe()
    lines = bars.toolTip().splitlines()
    assert lines[1:] == ["head 0: first 25.0 %, last 16 50.0 %", "head 1: first 75.0 %, last 16 12.5 %"]


@pytest.mark.parametrize(
    ("room", "num_lines", "shown"),
    [
        (99, 1, "one   two   three   four"),
        (9, 1, "one   two"),
        (9, 2, "one   two\nthree"),
        (9, 3, "one   two\nthree\nfour"),
        (4, 9, "one\ntwo"),  # the third has no room on a line of its own
        (1, 1, "one"),  # the first in any case
    ],
)
def test_entries_are_shown_whole_on_as_many_lines_as_there_are(room: float, num_lines: int, shown: str) -> None:
    assert whole_entries(("one", "two", "three", "four"), room, num_lines, len) == shown
