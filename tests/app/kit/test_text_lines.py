"""Where lines of text stand, how much of them, and that what was laid out is let go before there is too much."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from PySide6.QtGui import QPainter, QPaintEvent, QStaticText
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from app.kit import painting
from app.kit.painting import TextPainter
from app.kit.theme import font_fixed
from tests.app.painted import painted

TEXT, MIDDLE = "a line", 20.0
Draw = Callable[[TextPainter, QPainter], object]


class Drawn(QWidget):
    """A widget on which something is drawn; `told` is what that says."""

    def __init__(self, ink: TextPainter, draw: Draw) -> None:
        super().__init__()
        self._ink, self._draw = ink, draw
        self.told: object = None

    def paintEvent(self, event: QPaintEvent) -> None:
        self.told = self._draw(self._ink, QPainter(self))


CASES: dict[str, tuple[Draw, Callable[[float], float], Callable[[float], object]]] = {
    "left": (lambda ink, painter: ink.left(painter, 50, MIDDLE, TEXT), lambda _: 50, lambda wide: 50 + wide),
    "right": (lambda ink, painter: ink.right(painter, 150, MIDDLE, TEXT), lambda w: 150 - w, lambda wide: 150 - wide),
    "center": (lambda ink, painter: ink.center(painter, 100, MIDDLE, TEXT), lambda w: 100 - w / 2, lambda _: None),
    "between, with room": (
        lambda ink, painter: ink.between(painter, TEXT, 100, MIDDLE, 0, 200, 90), lambda w: 100 - w / 2, lambda _: None,
    ),
    "between, at the left end": (
        lambda ink, painter: ink.between(painter, TEXT, 5, MIDDLE, 10, 200, 90), lambda _: 10, lambda _: None,
    ),
    "between, at the right end": (
        lambda ink, painter: ink.between(painter, TEXT, 195, MIDDLE, 0, 190, 90), lambda w: 190 - w, lambda _: None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_line_stands_where_it_is_asked_to(qtbot: QtBot, name: str) -> None:
    draw, begin, told = CASES[name]
    ink = TextPainter(font_fixed(11.5))
    widget = Drawn(ink, draw)
    qtbot.addWidget(widget)
    widget.resize(200, 40)
    (line,) = [each for each in painted(widget) if each.startswith("text")]
    x, y = (int(number) for number in re.findall(r"-?\d+", line.rpartition("@")[2]))
    assert f"‹{TEXT}›" in line
    assert abs(x - begin(ink.width(TEXT))) <= 1
    assert MIDDLE < y < MIDDLE + 8, "the foot of its letters"
    assert widget.told == (told(ink.width(TEXT)))


def test_what_has_no_room_is_cut_and_the_longest_that_fits_is_taken(qtbot: QtBot) -> None:
    ink = TextPainter(font_fixed(11.5))
    one = ink.width("x")
    assert ink.elided("xxxx", 4 * one) == "xxxx"
    assert ink.elided("xxxx", 3.5 * one).endswith("…")
    assert ink.fitting(3 * one, "xxxxx", "", "xxx", "x") == "xxx"
    assert ink.fitting(2.5 * one, "xxxxx", "yyyy") == ink.elided("yyyy", 2.5 * one)
    assert ink.fitting(100, "", "") == ""


def test_lines_are_laid_out_once_and_let_go_before_there_are_too_many(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    laid: list[str] = []
    monkeypatch.setattr(painting, "_MOST_KEPT", 3)
    monkeypatch.setattr(painting, "QStaticText", lambda text: laid.append(text) or QStaticText(text))
    ink = TextPainter(font_fixed(11.5))
    for text in "abcabcada":
        ink.width(text)
    assert laid == [*"abcda"], "for the fourth all three are let go"
