"""A number that is dragged: where its slider stands, and what it says when a person moves it."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.kit.fields import Knob

STOPS = (8, 16, 32, 64)


@pytest.fixture
def knob(qtbot: QtBot, qapp: QApplication) -> Knob:
    knob = Knob("group", "Tokens that share a scale", 0)
    qtbot.addWidget(knob)
    knob.set_stops(STOPS, 1, 128)
    return knob


@pytest.mark.parametrize(("value", "stop"), [(1, 0), (8, 0), (11, 0), (13, 1), (20, 1), (28, 2), (47, 2), (49, 3)])
def test_the_slider_stands_at_the_stop_nearest_to_the_number(knob: Knob, value: int, stop: int) -> None:
    knob.set_value(value)
    assert (knob.number, knob.track.value()) == (value, stop)


def test_a_person_moves_it_and_code_does_not(qtbot: QtBot, knob: Knob) -> None:
    with qtbot.assertNotEmitted(knob.moved):
        knob.set_value(20)
        knob.set_stops((8, 16), 1, 18)
    assert (knob.number, knob.track.value(), knob.track.maximum()) == (18, 1, 1)
    with qtbot.waitSignal(knob.moved):
        knob.track.setValue(0)
    assert knob.number == 8
    with qtbot.waitSignal(knob.moved):
        knob.field.setValue(15)
    assert (knob.number, knob.track.value()) == (15, 1)
