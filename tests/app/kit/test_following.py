"""The end of a list is followed until a person scrolls away, and again when they come back to it."""

from __future__ import annotations

from PySide6.QtWidgets import QAbstractSlider, QApplication, QScrollArea, QWidget
from pytestqt.qtbot import QtBot

from app.panels.tokens import EndFollower


def test_who_scrolls_away_is_left_there_and_led_back_by_the_button(qtbot: QtBot, qapp: QApplication) -> None:
    area, rows = QScrollArea(), QWidget()
    qtbot.addWidget(area)
    area.resize(200, 150)
    area.setWidget(rows)
    rows.resize(100, 600)
    following = EndFollower(area, 2)
    area.show()
    QApplication.processEvents()
    bar, button = area.verticalScrollBar(), following.button

    def state() -> tuple[bool, bool, bool]:
        QApplication.processEvents()
        return following.is_following, button.isVisible(), bar.value() == bar.maximum()

    rows.resize(100, 700)
    assert state() == (True, False, True)
    bar.triggerAction(QAbstractSlider.SliderAction.SliderPageStepSub)
    assert state() == (False, True, False)
    assert area.viewportMargins().bottom() > 0, "the button has a line of its own"
    assert area.viewport().geometry().bottom() < button.geometry().top() <= area.height()
    at = bar.value()
    rows.resize(100, 900)
    assert state() == (False, True, False)
    assert bar.value() == at
    button.click()
    assert state() == (True, False, True)
    assert area.viewportMargins().bottom() == 0
    bar.triggerAction(QAbstractSlider.SliderAction.SliderToMinimum)
    assert state() == (False, True, False)
    bar.triggerAction(QAbstractSlider.SliderAction.SliderToMaximum)
    assert state() == (True, False, True)
    bar.triggerAction(QAbstractSlider.SliderAction.SliderToMinimum)
    rows.resize(100, 20)
    assert state() == (True, False, True), "where all is in sight, the end is"
