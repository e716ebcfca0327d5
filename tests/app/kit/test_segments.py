"""The segments of a strip: each is chosen by its own place and by the arrow keys, and told once."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QHelpEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QToolTip
from pytestqt.qtbot import QtBot

from app.kit.widgets import Segments

CHOICES = (("a", "first", "tip of a"), ("b", "the second one", "tip of b"), ("c", "third", "tip of c"))


def test_a_click_a_key_and_a_tip_are_of_their_own_segment(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    strip = Segments()
    told: list[str] = []
    tips: list[str] = []
    qtbot.addWidget(strip)
    monkeypatch.setattr(QToolTip, "showText", lambda _place, text, *_: tips.append(text))
    strip.set_choices(CHOICES)
    strip.set_choice("a")
    strip.show()
    strip.chosen.connect(told.append)
    places = [rect.center().toPoint() for rect in strip.rects()]
    for place in (places[2], places[0], places[1], places[1]):
        QTest.mouseClick(strip, Qt.MouseButton.LeftButton, pos=place)
    QTest.mouseClick(strip, Qt.MouseButton.LeftButton, pos=QPoint(strip.width() + 9, 5))
    assert told == ["c", "a", "b"]  # the one that is chosen already is not told again
    told.clear()
    for key in (Qt.Key.Key_Right, Qt.Key.Key_Right, Qt.Key.Key_Left, Qt.Key.Key_Left, Qt.Key.Key_Up):
        QTest.keyClick(strip, key)
    assert told == ["c", "a", "c", "b"]  # round the ends
    for place in places:
        QApplication.sendEvent(strip, QHelpEvent(QHelpEvent.Type.ToolTip, place, strip.mapToGlobal(place)))
    assert tips == ["tip of a", "tip of b", "tip of c"]
    assert strip.accessibleName() == "the second one"
    strip.set_choices(())
    QTest.keyClick(strip, Qt.Key.Key_Right)
    assert told == ["c", "a", "c", "b"]
