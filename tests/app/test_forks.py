"""Each test begins with a window that no other test has touched, though it was built for all of them."""

from __future__ import annotations

import pytest

from app.shell import Shell
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine


@pytest.mark.parametrize("number", [1, 2])
def test_what_another_test_did_to_the_window_is_not_there(running: Shell, engine: FakeEngine, number: int) -> None:
    assert (len(running.models.timeline), running.models.selection.now.step, engine.sent) == (21, None, [])
    running.models.selection.update(step=3)
    running.intents.on_run_to(number)
    turn(running)
    assert len(running.models.timeline) == 21 + number
