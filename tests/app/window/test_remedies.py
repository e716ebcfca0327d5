"""Remedies that are offered where a context or a cache is full."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.shell import Shell
from engine.wire.events import StateChanged
from engine.wire.records import StopReason
from engine.wire.status import SequenceInfo
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine

BACK, PROMPT = "Look back, then go on from a step of your choice", "Write a new prompt"
GROWING = "Go on in a growing cache: every row moves over"
WINDOW = "Go on with StreamingLLM: keep the first tokens and the latest"


def stopped(shell: Shell, engine: FakeEngine, stop: StopReason | None, *, goes_beyond: bool = True) -> list[str]:
    info = SequenceInfo(0, "finished" if stop else "decode", samples.PROMPT + 20, samples.PROMPT, 11, stop)
    model = replace(samples.model_info(), goes_beyond_context=goes_beyond)
    engine.emit(StateChanged(replace(engine.status, model=model, sequences=(info,))))
    turn(shell)
    return [entry.text() for entry in shell.window.top.remedies.fill().actions()]


def test_a_window_without_a_model_offers_no_remedy(shell: Shell) -> None:
    assert not shell.window.top.remedies.isVisible()


@pytest.mark.parametrize(
    ("stop", "goes_beyond", "ways"),
    [
        ("cache full", True, [BACK, GROWING, PROMPT]),
        ("cache full", False, [BACK, GROWING, PROMPT]),
        ("context full", True, [BACK, WINDOW, PROMPT]),
        ("context full", False, [BACK, PROMPT]),
    ],
)
def test_only_remedies_that_help_are_offered(
    running: Shell, engine: FakeEngine, stop: StopReason, goes_beyond: bool, ways: list[str]
) -> None:
    assert running.window.top.remedies.isHidden()
    assert stopped(running, engine, stop, goes_beyond=goes_beyond) == ways
    assert not running.window.top.remedies.isHidden()
    running.models.selection.update(step=3)
    assert running.window.top.remedies.isHidden()
    running.models.selection.update(step=None)
    assert not running.window.top.remedies.isHidden()


@pytest.mark.parametrize("stop", [None, "end of text", "stopped"])
def test_nothing_is_offered_where_nothing_is_full(running: Shell, engine: FakeEngine, stop: StopReason | None) -> None:
    stopped(running, engine, stop)
    assert running.window.top.remedies.isHidden()
