"""Garbage is collected by Python where nobody owns it, and by its owner alone where somebody does."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

import engine.garbage
from engine.garbage import Garbage


class Node:
    """Something that only a collection can free: it refers to itself."""

    freed_in: threading.Thread | None = None

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        Node.freed_in = threading.current_thread()


@pytest.fixture
def collector() -> Iterator[Garbage]:
    made = Garbage()
    yield made
    made.disown()


def test_without_an_owner_garbage_is_collected_at_once(collector: Garbage) -> None:
    left = weakref.ref(Node())
    collector.collect()
    assert left() is None


def test_the_owner_alone_collects(collector: Garbage) -> None:
    collector.own()
    assert collector.is_owned
    assert not gc.isenabled()
    asking = threading.Thread(target=collector.collect)
    left = weakref.ref(Node())
    asking.start()
    while asking.is_alive() and left() is not None:
        collector.collect_due()
        time.sleep(0.001)
    asking.join()
    assert left() is None
    assert Node.freed_in is threading.main_thread()
    collector.disown()
    assert gc.isenabled()
    assert not collector.is_owned


def test_who_asks_does_not_wait_for_ever(collector: Garbage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.garbage, "WAIT_S", 0.01)
    collector.own()
    left = weakref.ref(Node())
    collector.collect()
    assert left() is not None
    collector.collect_due()  # what was asked for is done when the owner comes to it
    assert left() is None


@pytest.mark.parametrize(
    ("thresholds", "collected"),
    [((1, 20, 20), 0), ((1, 10, 20), 1), ((20, 20, 10), 2), ((20, 20, 0), 2), ((1, 20, 0), 2)],
)
def test_the_oldest_generation_that_is_due_is_collected(
    collector: Garbage, thresholds: tuple[int, int, int], collected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generations: list[int] = []
    monkeypatch.setattr(gc, "get_threshold", lambda: thresholds)
    monkeypatch.setattr(gc, "get_count", lambda: (11, 11, 11))
    monkeypatch.setattr(gc, "collect", generations.append)
    collector.collect_due()
    assert generations == [collected]


def test_nothing_is_collected_before_it_is_due(collector: Garbage, monkeypatch: pytest.MonkeyPatch) -> None:
    generations: list[int] = []
    monkeypatch.setattr(gc, "get_threshold", lambda: (10, 10, 0))
    monkeypatch.setattr(gc, "get_count", lambda: (10, 10, 10))
    monkeypatch.setattr(gc, "collect", generations.append)
    collector.collect_due()
    assert generations == []
