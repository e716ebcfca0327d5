"""Keys that are no line of the table of actions."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.actions.menus import RUN
from app.control.actions import declared_in
from app.control.requests import PACES
from app.shell import Shell
from tests.app import samples
from tests.app.actions.desk import Desk, to_change
from tests.app.fake_engine import FakeEngine


def test_eight_layers_up_are_eight(shell: Shell, engine: FakeEngine, tmp_path: Path) -> None:
    deep = samples.model_info("deep", shape=samples.geometry(layers=20))
    engine.status = replace(engine.status, model=deep)
    desk = Desk(shell, engine, tmp_path)
    desk.models.selection.update(layer=9)
    desk.press("view.layers_up")
    assert desk.models.selection.now.layer == 1
    desk.press("view.layers_down")
    assert desk.models.selection.now.layer == 9


def test_keys_take_the_difference_back(desk: Desk) -> None:
    to_change(desk)
    desk.press("view.keys")
    now = desk.models.selection.now
    assert (now.lens, now.change) == ("keys", False)


def test_letters_stay_letters_while_somebody_types(desk: Desk, qtbot: QtBot) -> None:
    edit = desk.window.prompt.edit
    edit.set_text("")
    edit.setFocus()
    qtbot.keyClicks(edit, "vkd fc")
    qtbot.keyClick(edit, Qt.Key.Key_Home)
    assert edit.text() == "vkd fc"
    assert (desk.models.selection.now.lens, desk.models.selection.now.change) == ("keys", False)


def test_each_pace_has_the_number_at_which_it_stands() -> None:
    keys = {action.name: action.key for action in declared_in({"": RUN})}
    assert [keys[f"pace.{name}"] for name in PACES] == ["Alt+1", "Alt+2", "Alt+3", "Alt+4"]
