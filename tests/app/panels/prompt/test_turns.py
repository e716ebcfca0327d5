"""The list of turns: which of them is in sight."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.models import Models
from app.panels.prompt.chat import TurnList
from app.panels.prompt.view import CHAT_HEIGHT, PromptPanel
from app.window.docks import SIDE_COLUMNS
from engine.spec.sampling import Turn

TURNS = tuple(Turn("user", f"turn {n}\nof some\nlines") for n in range(9))


def test_the_newest_turn_is_in_sight_but_for_one_that_was_put_before_all_others(qtbot: QtBot) -> None:
    turns = TurnList()
    qtbot.addWidget(turns)
    turns.resize(300, 120)
    turns.show()
    bar = turns.verticalScrollBar()

    def at() -> tuple[bool, bool]:
        """Whether the first and the last turn is in sight, once all is laid out."""
        for _ in range(3):
            QApplication.processEvents()
        assert bar.maximum() > 0
        return bar.value() == 0, bar.value() == bar.maximum()

    turns.set_turns(TURNS)
    assert at() == (False, True)
    turns.begin_with(Turn("system", "what it is"))
    assert at() == (True, False)
    turns.set_turns((*turns.turns, Turn("assistant", "an answer")))
    assert at() == (False, True)
    turns.begin_with(Turn("system", "another one"))
    turns.add(Turn("user", "and one more"))
    assert at() == (False, True)
    assert turns.rows[-1].edit.hasFocus() or not turns.isActiveWindow()


@pytest.mark.usefixtures("dark_theme")
def test_nothing_beside_turns_is_cut_in_the_narrowest_column(qtbot: QtBot) -> None:
    panel = PromptPanel(Models())
    qtbot.addWidget(panel)
    qtbot.addWidget(panel.take_strip())  # as a dock does, which may be narrower than the strip's parts together
    panel.show()
    panel.choose("chat")
    panel.resize(SIDE_COLUMNS["prompt"][0], CHAT_HEIGHT)
    turns = panel.chat.turns
    turns.set_turns(TURNS)
    for _ in range(3):
        QApplication.processEvents()
    assert turns.verticalScrollBar().maximum() > 0
    assert turns.horizontalScrollBar().maximum() == 0
