"""The banner of a failure."""

from __future__ import annotations

from itertools import product

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


LONG = "The folder holds no config.json: choose another. " * 8


def test_a_banner_covers_nothing_and_gives_no_panel_another_place(running: Shell, engine: FakeEngine) -> None:
    """What it is about may be what it would cover, and it stays until it is dismissed."""
    window, docks = running.window, running.window.docks

    def tabs() -> dict[str, set[str]]:
        shown = (dock for dock in docks.docks.values() if dock.isVisible())
        return {dock.objectName(): {each.objectName() for each in docks.tabifiedDockWidgets(dock)} for dock in shown}

    for size, layout in product(((800, 564), (1280, 764)), ("inspect", "truth")):
        window.resize(*size)
        window.arrange(layout)
        turn(running)
        before = tabs()
        assert len(before) >= 4, (size, layout)
        engine.emit(Failed(LONG))
        turn(running)
        banner = window.banner
        assert banner.isVisible()
        assert tabs() == before, (size, layout)
        place = QRect(banner.mapTo(window, QPoint(0, 0)), banner.size())
        for other in (window.top, docks.parentWidget(), window.timeline):
            assert not place.intersects(QRect(other.mapTo(window, QPoint(0, 0)), other.size())), (size, layout)
        (text,) = banner.findChildren(QLabel)
        assert text.height() >= text.heightForWidth(text.width()) >= text.fontMetrics().height()
        button(banner, "Dismiss").click()
        turn(running)
        assert tabs() == before, (size, layout)


def test_a_dead_engine_is_told_above_the_panels_until_one_is_there_again(running: Shell, engine: FakeEngine) -> None:
    docks, banner = running.window.docks, running.window.banner
    before = docks.height()
    engine.emit(EngineLost("The engine was killed: restart it."))
    turn(running)
    assert banner.isVisible()
    assert docks.height() == before - banner.height()
    engine.emit(EngineBack())
    button(banner, "Dismiss").click()
    turn(running)
    assert docks.height() == before
