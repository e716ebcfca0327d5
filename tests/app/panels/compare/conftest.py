"""A window in which two runs are compared."""

from __future__ import annotations

import pytest

from app.shell import Shell
from tests.app.fake_engine import FakeEngine
from tests.app.panels.compare.desk import CompareDesk


@pytest.fixture
def desk(running: Shell, engine: FakeEngine) -> CompareDesk:
    return CompareDesk(running, engine)


@pytest.fixture
def compared(desk: CompareDesk) -> CompareDesk:
    desk.start()
    return desk
