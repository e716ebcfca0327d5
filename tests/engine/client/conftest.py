"""Fixtures that tests of engine processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.client import process
from engine.client.process import ProcessClient
from tests.engine.client.driver import Driver


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setattr(process, "SILENT_S", 300.0)  # on a busy machine it may be silent for long
    driver = Driver(ProcessClient())
    yield driver
    driver.client.close(0.5)
