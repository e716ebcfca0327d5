"""A controller on a fake engine; an empty folder for journals of sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.control.controller import Controller
from app.models import Models
from engine.saved.journal import JournalFolder
from engine.spec.sampling import SamplingParams
from tests.app.fake_engine import FakeEngine


@pytest.fixture
def controller(models: Models, engine: FakeEngine) -> Controller:
    controller = Controller(models, engine.send, engine.drain)
    engine.loaded()
    controller.tick()
    return controller


@pytest.fixture
def stepped(controller: Controller, models: Models, engine: FakeEngine) -> Controller:
    """A prompt and ten steps."""
    controller.intents.on_prompt_submitted("Once upon a time", SamplingParams())
    controller.tick()
    controller.intents.on_run_to(10)
    controller.tick()
    assert len(models.timeline) == 10 + 1
    engine.sent.clear()
    return controller


@pytest.fixture
def folder(tmp_path: Path) -> JournalFolder:
    return JournalFolder(tmp_path / "sessions")
