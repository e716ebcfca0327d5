"""Fixtures that tests of engine processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.client.process import ProcessClient
from tests.engine.client.driver import Driver


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver(ProcessClient())
    yield driver
    driver.client.close(0.5)
