"""Views that are told of a step are refreshed one after the other, with turns of the event loop between them."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QObject
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot
from shiboken6 import delete

import app.models as refresh_queue
from app.models import RefreshQueue


class Asker(QObject):
    def __init__(self, name: str, told: list[str]) -> None:
        super().__init__()
        self._name, self._told = name, told

    def refresh(self) -> None:
        self._told.append(self._name)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(refresh_queue, "TURN_S", 0.0)  # one view a turn
    return []


def test_what_is_asked_at_once_is_done_at_once(qtbot: QtBot, told: list[str]) -> None:
    queue, one = RefreshQueue(), Asker("one", told)
    queue.ask(one.refresh)
    assert told == ["one"]
    with queue.frame():
        queue.ask(one.refresh)
        queue.ask(one.refresh)
        assert told == ["one"], "in a frame it waits, once, until the frame has ended"
    assert told == ["one", "one"]
    assert queue.is_empty


def test_what_a_refresh_asks_for_comes_after_those_asked_for_and_once(qtbot: QtBot, told: list[str]) -> None:
    queue, one, two = RefreshQueue(), Asker("one", told), Asker("two", told)

    class First(Asker):
        def refresh(self) -> None:
            super().refresh()
            with queue.frame():  # inside another one it is part of that
                queue.ask(two.refresh)
            queue.ask(one.refresh)

    first = First("first", told)
    with queue.frame():
        queue.ask(first.refresh)
        queue.ask(one.refresh)
        queue.ask(two.refresh)
    assert told == ["first", "one", "two"]


def test_what_is_spread_is_done_in_order_once_each_a_view_a_turn(qtbot: QtBot, told: list[str]) -> None:
    queue, askers = RefreshQueue(), [Asker(name, told) for name in "abcd"]
    with queue.frame(is_spread=True):
        for asker in (*askers, askers[0]):
            queue.ask(asker.refresh)
    assert not told
    assert not queue.is_empty
    queue.ask(askers[1].refresh)
    assert told == ["b"], "outside it is done at once, and waits no more"
    delete(askers[2])
    queue.on_turn()
    assert told == ["b", "a"]
    qtbot.waitUntil(lambda: queue.is_empty)
    QApplication.processEvents()
    assert told == ["b", "a", "d"], "one that is gone is not asked"


def test_several_are_done_in_a_turn_that_has_the_time(
    qtbot: QtBot, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh_queue, "TURN_S", 60.0)
    queue, askers = RefreshQueue(), [Asker(name, told) for name in "abc"]

    def fail() -> None:
        with queue.frame(is_spread=True):
            for asker in askers:
                queue.ask(asker.refresh)
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        fail()
    queue.on_turn()
    assert (told, queue.is_empty) == (["a", "b", "c"], True)
    queue.ask(askers[0].refresh)
    assert told[3:] == ["a"], "nothing is spread any more, whatever happened"
