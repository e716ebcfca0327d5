"""Lines of `name … number`: numbers are shown whole or in their short form, never cut in the middle."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.kit.facts import PITCH, Fact, Facts, WholeLines
from app.kit.painting import TextPainter
from app.kit.theme import font_fixed

LONG, SHORT = "K[0, 0, 184, 18] = -0.70185137", "-0.70185137"


def painted(fact: Fact, width: int, others: tuple[Fact, ...] = ()) -> np.ndarray:
    """The pixels of one line, as grey; others stand below it."""
    facts = Facts("Lines")
    facts.show_facts((fact, *others))
    facts.setMinimumHeight(0)
    facts.resize(width, PITCH)
    image = facts.grab().toImage().convertToFormat(QImage.Format.Format_Grayscale8)
    stride = image.bytesPerLine()
    return np.frombuffer(image.constBits(), np.uint8).reshape(image.height(), stride)[:, :width].copy()


def test_a_number_without_room_takes_its_short_form(qapp: QApplication) -> None:
    wide, narrow = 420, 210
    assert np.array_equal(painted(Fact("cursor", LONG, short=SHORT), wide), painted(Fact("cursor", LONG), wide))
    assert np.array_equal(painted(Fact("cursor", LONG, short=SHORT), narrow), painted(Fact("cursor", SHORT), narrow))


@pytest.mark.parametrize(("room", "shown"), [(400.0, "one two three"), (60.0, "one two"), (24.0, "one")])
def test_the_first_text_that_fits_is_taken(qapp: QApplication, room: float, shown: str) -> None:
    assert TextPainter(font_fixed(11.5)).fitting(room, "one two three", "one two", "one") == shown


def test_small_pictures_end_at_one_line_whatever_the_digits(qapp: QApplication) -> None:
    def right_edge(text: str) -> int:
        line = painted(Fact("norm", text, bars=(1.0, 1.0, 1.0), color="bad"), 300)
        bars = line[5] == line[5, 150]  # a row through all bars
        return int(np.flatnonzero(bars[100:230]).max())

    assert right_edge("L1 15.5") == right_edge("L1 4.3") == right_edge("-6.23 … 3.43")


def test_sizes_and_numbers_of_a_ledger_never_touch(qapp: QApplication) -> None:
    line = painted(Fact("process", "2,116,657,152,000", aside="1,023.9 GiB"), 420)
    ink = np.flatnonzero((line > 60).any(axis=0))
    gaps = np.diff(ink)
    assert (gaps >= 14).sum() >= 2, "label, size and number stand apart"


@pytest.mark.parametrize("others", [(), (Fact("x", "1", aside="2 KiB"),)])
def test_a_label_gives_way_to_its_number_beside_the_columns_of_a_ledger_too(
    qapp: QApplication, others: tuple[Fact, ...]
) -> None:
    line = painted(Fact("a label of many words, more than the line has room for", "2,116,657"), 320, others)
    gaps = np.diff(np.flatnonzero((line > 60).any(axis=0)))
    alone = painted(Fact("", "2,116,657"), 320, others)
    first = int(np.flatnonzero((alone > 60).any(axis=0))[0])
    assert np.array_equal(line[:, first - 4 :], alone[:, first - 4 :]), "nothing is painted over the number"
    assert gaps.max() < 40, "and the label takes what is left"


def test_lines_are_told_to_screen_readers_as_they_are_now(qapp: QApplication) -> None:
    facts = Facts("Lines")
    for number in ("12", "13"):
        facts.show_facts((Fact("bytes", number), Fact("of it", "7", indent=1)))
        assert facts.accessibleDescription() == f"bytes\t{number}\n  of it\t7"


def test_lines_are_scrolled_to_by_whole_ones_and_to_the_very_end(qtbot: QtBot) -> None:
    facts = Facts("Lines")
    facts.show_facts(tuple(Fact(str(n), "x") for n in range(20)))
    lines = WholeLines(facts)
    qtbot.addWidget(lines)
    lines.resize(200, 5 * PITCH + 4)
    lines.show()
    QApplication.processEvents()
    bar = lines.verticalScrollBar()
    bar.setValue(2 * PITCH + 5)
    assert bar.value() == 2 * PITCH
    bar.setValue(bar.maximum())
    assert bar.value() == bar.maximum()
