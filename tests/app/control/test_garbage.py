"""Where there is a window, a widget that nobody refers to any more is deleted in the window's thread."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from app.control.controller import GarbageTimer
from engine.garbage import garbage


@pytest.fixture
def timer(qapp: QApplication) -> Iterator[GarbageTimer]:
    made = GarbageTimer()
    made.start()
    yield made
    made.stop()


class Own(QWidget):
    """A widget that only a collection can delete."""

    def __init__(self) -> None:
        super().__init__()
        self.itself = self


def test_a_widget_is_deleted_between_two_events_and_not_by_another_thread(qtbot: QtBot, timer: GarbageTimer) -> None:
    def threads() -> None:
        made: list[list[object]] = []
        for _ in range(50_000):  # far more than Python waits for before it collects
            made.append([made])
        garbage.collect()
        is_done.append(True)

    deleted: list[threading.Thread] = []
    is_done: list[bool] = []
    Own().destroyed.connect(lambda: deleted.append(threading.current_thread()))
    thread = threading.Thread(target=threads)
    thread.start()
    thread.join(0.2)
    assert deleted == []  # no event was handled yet
    qtbot.waitUntil(lambda: bool(is_done))
    assert deleted == [threading.main_thread()]


def test_what_gathers_is_collected_without_being_asked(qtbot: QtBot, timer: GarbageTimer) -> None:
    deleted: list[bool] = []
    Own().destroyed.connect(lambda: deleted.append(True))
    kept = [[number] for number in range(gc.get_threshold()[0] + 1)]
    qtbot.waitUntil(lambda: bool(deleted))
    assert kept
