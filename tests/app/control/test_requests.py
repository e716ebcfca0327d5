"""What was asked of an engine that is gone is waited for no more, whatever it was."""

from __future__ import annotations

from app.control.controller import Controller
from app.models import Models
from engine.spec.cache import CacheSpec
from engine.wire.commands import BeginBranch, StartComparison
from engine.wire.comparison import OtherRun
from tests.app import samples
from tests.app.fake_engine import FakeEngine


def test_nobody_waits_for_an_engine_that_is_gone(models: Models, engine: FakeEngine) -> None:
    models.timeline.append(samples.story(3))
    models.status.set(samples.status(3, num_tokens=models.timeline.num_tokens(0)))
    engine.is_silent = True
    controller = Controller(models, engine.send, engine.drain)
    requests = controller.requests
    assert requests.are_all_answered
    models.viewport.update(wall_size=(40, 16))
    requests.pictures.ask()
    requests.sequences.ask(BeginBranch(0, 2, (7,)))
    requests.comparing.start(StartComparison(0, OtherRun(CacheSpec("paged"))))
    assert not requests.are_all_answered
    controller.events.forget_engine()
    assert (requests.sequences.is_empty, requests.comparing.is_complete) == (True, True)
    assert (requests.pictures.is_waiting, models.comparison.asked) == (False, None)
