"""A window on a real engine that can be killed (in `test_nothing_lost`), or begun again at rest: what was
there before is there again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from PySide6.QtWidgets import QApplication

from app.control.engine import Engine
from app.kit.theme import load_fonts
from app.shell import Shell
from app.start.settings import Settings
from engine.client import ClientChoice
from engine.client.process import ProcessClient
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.spec.presets import cache_preset
from engine.spec.tuning import tuned
from tests.app.conftest import sweep
from tests.app.driver import source_of

PATIENCE_S = 120
H2O = tuned(cache_preset("h2o").spec, budget=16)
PROMPT = "Once upon a time there was a little fox who lived in the forest and had many friends."


class Desk:
    """A window, and the engine that the program would open for it: in a process that can be killed, or in a thread."""

    def __init__(self, app: QApplication, kind: ClientChoice) -> None:
        load_fonts()
        self.engine = Engine(kind)
        self.shell = Shell(app, Settings(theme="dark", prompt=PROMPT), self.engine.send, self.engine.drain)
        self.models = self.shell.models
        self.shell.window.show()
        self.engine.start(ModelSpec(num_threads=1), CacheSpec("paged"))
        self.until(lambda: self.models.status.model is not None)

    def until(self, holds: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < end, f"waited for {source_of(holds)}; {self.models.status.now}"
            self.shell.controller.tick()
            QApplication.processEvents()
            time.sleep(0.002)

    def steps(self, count: int) -> None:
        last = len(self.models.timeline) + count
        self.shell.intents.on_run_to(count)
        self.until(lambda: len(self.models.timeline) == last and self.shell.controller.is_settled)

    def die(self) -> None:
        client = self.engine._client
        assert isinstance(client, ProcessClient)
        assert client.process_id is not None
        os.kill(client.process_id, signal.SIGKILL)
        self.until(lambda: self.models.status.is_engine_lost)

    def begin_again(self) -> None:
        self.engine.restart(self.models.status.cache)
        self.models.status.set_engine("process")
        self.models.status.fail("")
        self.shell.controller.replay()
        self.until(lambda: not self.shell.controller.requests.restore.is_going_on)
        self.until(lambda: self.shell.controller.is_settled)

    def seen_at(self, step: int | None) -> list[np.ndarray]:
        """The rows of every picture of a step: the wall and a head."""
        self.models.slices.clear()
        self.models.selection.update(step=step)
        self.until(lambda: self.shell.controller.is_settled and self.models.slices.head is not None)
        head, wall = self.models.slices.head, self.models.slices.wall
        assert head is not None
        assert wall is not None
        assert head.request.num_tokens == self.models.timeline.num_tokens(0, step)
        return [head.low, head.high, wall.low, wall.high]


@pytest.fixture
def desk(qapp: QApplication, request: pytest.FixtureRequest) -> Iterator[Desk]:
    desk = Desk(qapp, getattr(request, "param", "process"))
    yield desk
    desk.engine.close(5.0)
    sweep(desk.shell)


def assert_rows(before: dict[int, list[np.ndarray]], desk: Desk) -> None:
    for step, pictures in before.items():
        for was, now in zip(pictures, desk.seen_at(step), strict=True):
            assert np.array_equal(was, now, equal_nan=True), f"step {step}"


@pytest.mark.parametrize("desk", ["thread"], indirect=True)
def test_an_engine_that_begins_again_has_the_rows_that_a_rule_left_on_a_branch(desk: Desk) -> None:
    """At rest, in a mode that drops rows, behind steps that were left. Begun anew in a thread it is as empty."""
    models, intents = desk.models, desk.shell.intents
    desk.shell.window.actions_["prompt.send"].trigger()
    desk.until(lambda: len(models.timeline) and desk.shell.controller.is_settled)
    desk.steps(6)
    last = models.timeline.latest.step  # type: ignore[union-attr]
    models.selection.update(step=4)
    intents.on_go_on_from_here()
    desk.until(lambda: len(models.timeline) == 5 and desk.shell.controller.is_settled)
    intents.on_cache_chosen(H2O)
    desk.until(lambda: models.status.cache == H2O)
    desk.steps(5)
    assert any(record.evictions for record in models.timeline)
    path = [record.step for record in models.timeline]
    assert path[5] > last, "the steps that were left keep their numbers"
    before = {path[place]: desk.seen_at(path[place]) for place in (2, 4, 7, 9)}
    desk.begin_again()
    assert (models.status.cache, [record.step for record in models.timeline]) == (H2O, path)
    assert_rows(before, desk)
