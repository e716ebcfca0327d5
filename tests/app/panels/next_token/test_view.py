"""The list of candidates: a click or Enter forces one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.models import Models
from app.panels.next_token.view import NextTokenView
from tests.app.panels.recorded import recorded_models


@pytest.fixture
def models(qapp: QApplication) -> Models:
    return recorded_models()


def test_clicking_or_entering_a_choice_forces_it(models: Models, show: Callable[..., Any], qtbot: QtBot) -> None:
    view = show(NextTokenView(models))
    record = models.timeline.latest
    assert record is not None
    wanted = record.sequences[0].candidates
    place = view._list.visualRect(view._list_model.index(2)).center()
    with qtbot.waitSignal(view.token_forced) as clicked:
        qtbot.mouseClick(view._list.viewport(), Qt.MouseButton.LeftButton, pos=place)
    assert clicked.args == [wanted[2].token_id]
    qtbot.keyClick(view._list, Qt.Key.Key_Up)
    with qtbot.waitSignal(view.token_forced) as entered:
        qtbot.keyClick(view._list, Qt.Key.Key_Return)
    assert entered.args == [wanted[1].token_id]


def test_one_click_forces_once(models: Models, show: Callable[..., Any], qtbot: QtBot) -> None:
    view = show(NextTokenView(models))
    forced: list[int] = []
    view.token_forced.connect(forced.append)
    place = view._list.visualRect(view._list_model.index(0)).center()
    qtbot.mouseClick(view._list.viewport(), Qt.MouseButton.LeftButton, pos=place)
    assert len(forced) == 1
