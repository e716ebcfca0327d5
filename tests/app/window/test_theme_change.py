"""A window whose theme is changed looks like one that began in that theme."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.kit.theme import ThemeChoice, load_fonts
from app.shell import Shell
from app.start.settings import Settings
from tests.app.conftest import sweep, turn
from tests.app.fake_engine import FakeEngine
from tests.effort import effort


@pytest.fixture
def shells(qtbot: QtBot) -> Iterator[list[Shell]]:
    opened: list[Shell] = []
    yield opened
    for shell in opened:
        sweep(shell)


def picture(shells: list[Shell], begin: ThemeChoice, end: ThemeChoice, layout: str) -> QImage:
    """The window after some steps, begun in one theme and changed to another."""
    app = QApplication.instance()
    assert isinstance(app, QApplication)
    load_fonts()
    engine = FakeEngine()
    shell = Shell(app, Settings(theme=begin), engine.send, engine.drain)
    shells.append(shell)
    shell.window.resize(1600, 1000)
    shell.window.show()
    engine.loaded()
    turn(shell)
    shell.window.arrange(layout)
    shell.window.actions_["prompt.send"].trigger()
    turn(shell)
    shell.intents.on_run_to(20)
    shell.models.selection.update(position=5)
    turn(shell)
    if begin != end:
        shell.set_theme(end)
        turn(shell)
    shell.window.setFocus()  # the editor's cursor blinks
    turn(shell)
    found = shell.window.grab().toImage()
    shell.window.hide()
    return found


PLACES: list[tuple[ThemeChoice, str]] = [("light", "inspect"), ("dark", "learn")]


@pytest.mark.parametrize(("theme", "layout"), effort(PLACES, [*PLACES, ("dark", "inspect"), ("light", "learn")]))
def test_a_window_in_another_theme_looks_like_one_that_began_in_it(
    shells: list[Shell], theme: ThemeChoice, layout: str
) -> None:
    other: ThemeChoice = "dark" if theme == "light" else "light"
    begun, changed = picture(shells, theme, theme, layout), picture(shells, other, theme, layout)
    assert begun == changed
