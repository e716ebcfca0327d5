"""The status line: news, work and what it costs to look."""

from __future__ import annotations

from msgspec.structs import replace
from PySide6.QtWidgets import QLabel

from app.shell import Shell
from engine.wire.commands import Cancel
from engine.wire.records import StateChanged, Work
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine


def test_the_status_line_says_nothing_that_never_changes(running: Shell) -> None:
    words = [label.text() for label in running.window.status.findChildren(QLabel)]
    assert any("thread" in word for word in words)
    assert not any("offline" in word for word in words)


def test_work_shows_progress_and_can_be_cancelled(running: Shell, engine: FakeEngine) -> None:
    work = running.window.status._work
    engine.emit(StateChanged(replace(engine.status, work=Work("Downloading", 3 << 30, 6 << 30))))
    turn(running)
    assert work.isVisible()
    assert "50.0 %" in work.label.text()
    work._button.click()
    assert engine.of(Cancel)
    engine.emit(StateChanged(engine.status))
    turn(running)
    assert not work.isVisible()
