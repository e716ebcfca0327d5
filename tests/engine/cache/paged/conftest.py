"""What every test of paged caches has beside it: a reader that keeps maps of the pools from the records alone."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import pytest

from engine.history.pages import PageMaps
from engine.session.session import Session
from engine.wire.pages import PageMap
from engine.wire.records import StepRecord

MAPS: WeakKeyDictionary[Session, tuple[PageMap, ...]] = WeakKeyDictionary()


@pytest.fixture
def a_reader_of_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the window does: it has nothing but the records, and keeps maps of the pools from them."""
    step = Session.step
    readers: WeakKeyDictionary[Session, PageMaps] = WeakKeyDictionary()

    def step_and_read(session: Session, *watched: Any) -> StepRecord:
        record = step(session, *watched)
        reader = readers.setdefault(session, PageMaps())
        MAPS[session] = reader.fold(record.step, record.page_events, record.pools)
        return record

    monkeypatch.setattr(Session, "step", step_and_read)
