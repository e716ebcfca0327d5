"""A budget as a share and in KiB: a change of one changes the other."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QDoubleSpinBox
from pytestqt.qtbot import QtBot

from app.kit.fields import Knob
from app.kit.widgets import ElidedLabel
from app.panels.damage import PlanSheet

EXACT = 2000 * 1024


def test_a_budget_typed_in_kib_moves_the_share_and_the_share_the_kib(qtbot: QtBot) -> None:
    sheet = PlanSheet()
    qtbot.addWidget(sheet)
    sheet.show_plan(None, EXACT)
    (share,) = sheet.findChildren(Knob)
    kib = next(box for box in sheet.findChildren(QDoubleSpinBox) if box.accessibleName() == "Budget in KiB")
    assert (share.value, kib.value(), sheet.budget_bytes) == (35, 700, 700 * 1024)
    kib.setValue(500)
    assert share.value == pytest.approx(25)
    sheet.share.field.setValue(50)
    assert (kib.value(), sheet.budget_bytes) == (1000, 1000 * 1024)
    kib.setValue(9000)
    assert share.value == 100, "no more than all of it"


def test_what_to_do_is_said_in_little_room_too(qtbot: QtBot) -> None:
    """As wide as in a window of 1280 pixels."""
    sheet = PlanSheet()
    qtbot.addWidget(sheet)
    sheet.resize(490, 140)
    sheet.show_plan(None, EXACT)
    sheet.show()
    (words,) = sheet.findChildren(ElidedLabel)
    room = words.fontMetrics().horizontalAdvance
    assert room(words.text()) > words.width() >= room(words.brief) > 0
