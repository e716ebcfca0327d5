"""Labels that know how to be short."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QEnterEvent
from pytestqt.qtbot import QtBot

from app.kit import widgets
from app.kit.theme import load_fonts
from app.kit.widgets import DotLabel, ElidedLabel


def test_a_source_without_room_says_its_step(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the engine runs, the step is what tells a picture of now from one of a moment ago."""
    load_fonts()
    drawn: list[str] = []

    class Spy(widgets.QPainter):
        def drawText(self, *arguments: object) -> None:
            drawn.append(str(arguments[-1]))

    monkeypatch.setattr(widgets, "QPainter", Spy)
    label, whole, step = DotLabel(), "recorded · step 8,123", "step 8,123"
    qtbot.addWidget(label)
    label.set_state(whole, "past", brief=step)
    advance = label.fontMetrics().horizontalAdvance
    for width, shown in ((advance(whole), whole), (advance(whole) - 2, step), (advance(step), step)):
        label.resize(width + 12, 20)
        label.grab()
        assert drawn[-1] == shown


@pytest.mark.parametrize(("needed", "width"), [(100, 100), (101, 107), (76, 100), (75, 81), (0, 6)])
def test_a_width_follows_a_text_without_following_every_digit(needed: int, width: int) -> None:
    assert widgets.SLACK == 24
    assert widgets.steady(100, needed) == width


def test_a_text_that_is_cut_is_told_whole_to_who_points_there(qtbot: QtBot) -> None:
    label, text = ElidedLabel(), "words that are longer than the label is wide"
    qtbot.addWidget(label)

    def tip(width: int) -> str:
        label.resize(width, 20)
        label.enterEvent(QEnterEvent(QPointF(), QPointF(), QPointF()))
        return label.toolTip()

    label.setText(text)
    assert text in tip(60)
    assert tip(900) == "", "nothing of it is missing"
    label.setToolTip("what it means")
    assert tip(60) == "what it means"


def test_a_tool_tip_under_the_mouse_follows_the_text(qtbot: QtBot) -> None:
    label = ElidedLabel()
    qtbot.addWidget(label)
    label.resize(60, 20)
    label.setText("words that are longer than the label is wide")
    label.setAttribute(Qt.WidgetAttribute.WA_UnderMouse)
    label.enterEvent(QEnterEvent(QPointF(), QPointF(), QPointF()))
    label.setText("other words that are longer than the label is wide")
    assert "other words" in label.toolTip()
    label.setText("short")
    assert not label.toolTip()
