"""A window on a real engine: all that a person did outlives a kill of the engine or of the window, and an engine that
begins again at rest."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from PySide6.QtWidgets import QApplication

from app.control.engine import Engine
from app.control.recovering import Recovering
from app.kit.theme import load_fonts
from app.shell import Shell
from app.start.settings import Settings
from engine.client import ClientChoice
from engine.client.process import ProcessClient
from engine.saved.document import read_session
from engine.saved.journal import JournalFolder
from engine.saved.session import SavedSession
from engine.spec.bookmark import Bookmark, OnStep, OnToken
from engine.spec.cache import CacheSpec, cache_preset, tuned
from engine.spec.condition import Breakpoint
from engine.spec.edit import Rows, Scale
from engine.spec.model import ModelSpec
from engine.wire.commands import BeginBranch, SetCache, SetSampling
from engine.wire.status import EngineStatus
from tests.app.conftest import sweep
from tests.app.driver import source_of

PATIENCE_S = 300
H2O = tuned(cache_preset("h2o").spec, budget=16)
PROMPT = "Once upon a time there was a little fox who lived in the forest and had many friends."
NOTES = (Bookmark(OnStep(2)), Bookmark(OnToken(6, 0, 4), "here it turns"))
BREAKPOINTS = (Breakpoint(1, "entropy > 9"), Breakpoint(2, 'token = " cat"', is_enabled=False))


class Desk:
    """A window, and the engine that the program would open for it: in a process that can be killed, or in a thread."""

    def __init__(self, app: QApplication, kind: ClientChoice) -> None:
        load_fonts()
        self.engine = Engine(kind)
        self.shell = Shell(app, Settings(theme="dark", prompt=PROMPT), self.engine.send, self.engine.drain)
        self.models = self.shell.models
        self.shell.window.show()
        self.engine.start(ModelSpec(num_threads=1), CacheSpec("paged"))
        self.until(lambda: self.models.status.now.model is not None)

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
        self.until(lambda: len(self.models.timeline) == last and self.shell.controller.is_idle)

    def die(self) -> None:
        client = self.engine._client
        assert isinstance(client, ProcessClient)
        assert client.process_id is not None
        os.kill(client.process_id, signal.SIGKILL)
        self.until(lambda: self.models.status.loss)

    def begin_again(self) -> None:
        self.engine.restart(self.models.status.now.cache)
        self.models.status.set_engine("process")
        self.models.status.fail("")
        self.shell.controller.replay()
        self.until(lambda: not self.shell.controller.requests.replaying.is_going_on)
        self.until(lambda: self.shell.controller.is_idle)

    def seen_at(self, step: int | None) -> list[np.ndarray]:
        """The rows of every picture of a step: the wall and a head."""
        self.models.pictures.clear()
        self.models.selection.update(step=step)
        self.until(lambda: self.shell.controller.is_idle and self.models.pictures.head is not None)
        head, wall = self.models.pictures.head, self.models.pictures.wall
        assert head is not None
        assert wall is not None
        assert head.request.num_tokens == self.models.timeline.num_tokens(0, step)
        return [head.low, head.high, wall.low, wall.high]


@pytest.fixture
def desk(qapp: QApplication, request: pytest.FixtureRequest) -> Iterator[Desk]:
    desk = Desk(qapp, getattr(request, "param", "process"))
    yield desk
    desk.engine.close(PATIENCE_S)
    sweep(desk.shell)


def assert_rows(before: dict[int, list[np.ndarray]], desk: Desk) -> None:
    for step, pictures in before.items():
        for was, now in zip(pictures, desk.seen_at(step), strict=True):
            assert np.array_equal(was, now, equal_nan=True), f"step {step}"


@pytest.mark.parametrize("desk", ["thread"], indirect=True)
def test_an_engine_that_begins_again_has_the_rows_that_a_rule_left_on_a_branch(desk: Desk) -> None:
    """At rest, in a mode that evicts rows, behind steps that were left. Begun anew in a thread it is as empty."""
    models, intents = desk.models, desk.shell.intents
    desk.shell.window.actions_["prompt.send"].trigger()
    desk.until(lambda: len(models.timeline) and desk.shell.controller.is_idle)
    desk.steps(6)
    last = models.timeline.latest.step  # type: ignore[union-attr]
    models.selection.update(step=4)
    intents.on_go_on_from_here()
    desk.until(lambda: len(models.timeline) == 5 and desk.shell.controller.is_idle)
    intents.send(SetCache(H2O))
    desk.until(lambda: models.status.now.cache == H2O)
    desk.steps(5)
    assert any(record.evictions for record in models.timeline)
    path = [record.step for record in models.timeline]
    assert path[5] > last, "the steps that were left keep their numbers"
    before = {path[place]: desk.seen_at(path[place]) for place in (2, 4, 7, 9)}
    desk.begin_again()
    assert (models.status.now.cache, [record.step for record in models.timeline]) == (H2O, path)
    assert_rows(before, desk)


def act(desk: Desk) -> None:
    """A prompt, steps, a branch, an edit, a note, a bookmark, a name, stops, and something that is not stepped yet."""
    intents, models = desk.shell.intents, desk.models
    desk.shell.window.actions_["prompt.send"].trigger()
    desk.until(lambda: models.timeline.latest is not None and models.timeline.latest.sequences[0].sampled is not None)
    desk.steps(4)
    intents.send(BeginBranch(0, 2, token_ids=(300,)))
    desk.until(lambda: models.history.live not in (None, 4) and desk.shell.controller.is_idle)
    desk.steps(1)  # another one was taken with the branch
    intents.on_edited(Scale(0, Rows(1, 5), 0.5))
    desk.until(lambda: models.edits.made and desk.shell.controller.is_idle)
    desk.steps(2)
    models.history.rename(models.history.branches()[-1].first, "another branch")
    for note in NOTES:
        intents.on_bookmark_put(note)
    intents.on_breakpoints_changed(BREAKPOINTS)
    status = models.status.now
    assert status is not None
    intents.send(SetSampling(replace(status.sequences[0].sampling, temperature=0.5, seed=7), 0))
    desk.until(lambda: _status(desk).pending and desk.shell.controller.is_idle)


def _status(desk: Desk) -> EngineStatus:
    return desk.models.status.now


def assert_same(now: SavedSession, then: SavedSession) -> None:
    for name in then.__struct_fields__:
        assert getattr(now, name) == getattr(then, name), name


@pytest.fixture
def left(desk: Desk, tmp_path: Path) -> tuple[JournalFolder, SavedSession]:
    """Where the journal is of a window that did all of it, and what it has."""
    folder = JournalFolder(tmp_path / "sessions")
    desk.shell.controller.saving.begin_in(folder, "")
    act(desk)
    desk.shell.window.prompt.edit.set_text("and then")
    desk.until(lambda: desk.shell.controller.saving.session.draft == "and then")
    session = desk.shell.controller.saving.session
    assert (len(session.nodes), session.bookmarks, len(session.stops)) == (10, NOTES, 2)
    assert [name for _, name in session.names] == ["another branch"]
    assert session.pending
    return folder, session


def test_the_engine_is_killed_while_it_runs(desk: Desk, left: tuple[JournalFolder, SavedSession]) -> None:
    """In pages, behind a branch and an edit: all that was done is there, and so are the rows of the steps before; going
    on from one of them is exact, too."""
    folder, session = left
    models, intents = desk.models, desk.shell.intents
    path = next(folder.folder.iterdir())
    assert_same(read_session(path).session, session)
    before = {step: desk.seen_at(step) for step in [record.step for record in models.timeline][1:]}
    assert not any(np.isnan(pictures[0]).any() for pictures in before.values())
    models.selection.update(step=None)
    count = len(models.timeline)
    intents.on_run_to(100)
    desk.until(lambda: len(models.timeline) > count + 3)
    desk.die()
    assert models.timeline.latest is not None
    last, tokens = models.timeline.latest.step, models.timeline.tokens(0)
    then = desk.shell.controller.saving.session
    assert then.live == last
    assert_same(read_session(path).session, then)
    desk.begin_again()
    assert not models.status.failure
    assert "exactly as first" in models.status.notice
    assert "where it was" in models.status.notice
    assert (models.timeline.latest.step, models.timeline.tokens(0)) == (last, tokens)
    assert (_status(desk).step, _status(desk).pending, len(_status(desk).breakpoints)) == (then.live, then.pending, 2)
    assert models.breakpoints.listed == BREAKPOINTS
    assert_same(desk.shell.controller.saving.session, then)
    assert_rows(before, desk)
    models.selection.update(step=list(before)[3])
    intents.on_go_on_from_here()
    desk.until(lambda: len(models.timeline) == 5 and desk.shell.controller.is_idle)
    assert models.timeline.tokens(0) == tokens[: models.timeline.num_tokens(0)]
    desk.steps(1)
    assert_same(read_session(path).session, desk.shell.controller.saving.session)


@pytest.mark.parametrize("desk", ["thread"], indirect=True)
def test_the_window_is_killed(
    qapp: QApplication, desk: Desk, left: tuple[JournalFolder, SavedSession], tmp_path: Path
) -> None:
    """What the system has of its journal at that moment is what the next window finds."""
    folder, session = left
    (path,) = folder.folder.iterdir()
    others = JournalFolder(tmp_path / "others")
    others.folder.mkdir()
    shutil.copy(path, others.folder / path.name)
    desk.shell.controller.saving.end()
    desk.shell.intents.on_breakpoints_changed(())
    desk.shell.window.actions_["prompt.send"].trigger()  # another session is in its place
    desk.until(lambda: len(desk.models.history) == 1 and desk.shell.controller.is_idle)
    desk.shell.controller.saving.begin_in(others, "")

    found = Recovering(others, desk.models, desk.shell.controller, "", desk.shell)
    drafts: list[str] = []
    found.draft_found.connect(drafts.append)
    found.look()
    desk.until(lambda: desk.models.recovery.offered is not None)
    offered = desk.models.recovery.offered
    assert offered is not None
    assert_same(offered.session, session)
    found.on_accepted()
    copied = others.folder / path.name  # this window's own journal has all of it then
    desk.until(lambda: not copied.exists() and desk.shell.controller.is_idle)
    assert drafts[0] == "and then"
    assert not desk.models.status.failure
    assert_same(replace(desk.shell.controller.saving.session, draft="and then"), session)
    assert (desk.models.bookmarks.all, desk.models.breakpoints.listed) == (NOTES, BREAKPOINTS)
    assert _status(desk).pending == session.pending
