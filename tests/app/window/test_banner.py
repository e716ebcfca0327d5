"""The banner of a failure."""

from __future__ import annotations

from itertools import product

import pytest
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtWidgets import QLabel

from app.shell import Shell
from engine.wire.events import EngineBack, EngineLost, Failed
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.found import button


def test_a_failure_is_a_banner_that_can_be_dismissed(running: Shell, engine: FakeEngine) -> None:
    banner = running.window.banner
    engine.emit(Failed("<b>The folder</b> holds no config.json: choose another."))
    turn(running)
    assert banner.isVisible()
    (text,) = banner.findChildren(QLabel)
    assert text.textFormat() == Qt.TextFormat.PlainText
    button(banner, "Dismiss").click()
    assert not banner.isVisible()
    assert running.models.timeline.latest is not None


def test_a_banner_covers_no_title(running: Shell, engine: FakeEngine) -> None:
    window = running.window
    for size, layout in product(((980, 700), (1280, 800), (1600, 1000), (2560, 1440)), ("learn", "inspect", "truth")):
        button(window.banner, "Dismiss").click()
        assert not window.banner.isVisible()
        window.resize(*size)
        window.arrange(layout)
        engine.emit(Failed("The folder holds no config.json: choose another."))
        turn(running)
        assert window.banner.isVisible()
        banner = QRect(window.banner.mapTo(window, QPoint(0, 0)), window.banner.size())
        docks = window.docks.docks.values()
        titles = [dock.titleBarWidget() for dock in docks if dock.isVisible() and dock.geometry().right() >= 0]
        assert len(titles) >= 4, (size, layout)
        for title in titles:
            place = QRect(title.mapTo(window, QPoint(0, 0)), title.size())
            assert not banner.intersects(place), (size, layout, title.parentWidget().objectName())


def test_a_panel_that_floats_does_not_move_the_banner(running: Shell, engine: FakeEngine) -> None:
    docks = running.window.docks
    before = docks.titles_end()
    docks.docks["bytes"].setFloating(True)
    docks.docks["bytes"].move(40, 20)
    assert docks.titles_end() == before


def test_a_banner_moves_nothing(running: Shell, engine: FakeEngine) -> None:
    docks = running.window.docks
    before = {name: dock.geometry() for name, dock in docks.docks.items()}
    engine.emit(Failed("The folder holds no config.json: choose another. " * 8))
    turn(running)
    assert running.window.banner.isVisible()
    assert {name: dock.geometry() for name, dock in docks.docks.items()} == before
    assert docks.rect().contains(running.window.banner.geometry())
    running.window.resize(1600, 1000)
    turn(running)
    assert docks.rect().contains(running.window.banner.geometry())
    (text,) = running.window.banner.findChildren(QLabel)
    assert text.height() >= text.heightForWidth(text.width())


@pytest.mark.parametrize("layout", ["inspect", "truth"])
def test_a_dead_engine_is_told_above_the_panels_and_covers_none_of_them(
    running: Shell, engine: FakeEngine, layout: str
) -> None:
    """The engine may stay dead for long, and its last pictures are what a person looks at meanwhile."""
    running.window.arrange(layout)
    docks, banner = running.window.docks, running.window.banner
    before = {name: dock.geometry() for name, dock in docks.docks.items() if dock.isVisible()}
    engine.emit(EngineLost("The engine was killed: restart it."))
    turn(running)
    assert banner.isVisible()
    assert not [name for name in before if docks.docks[name].geometry().intersects(banner.geometry())]
    engine.emit(EngineBack())
    button(banner, "Dismiss").click()
    turn(running)
    assert docks.docks["wall"].geometry().top() == before["wall"].top()
