"""A step in phases in the window, on the real engine: the strip, the pictures of each phase, and how the step ends."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from PySide6.QtCore import QPointF, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from app.window.phase_bar import phase_words
from engine.spec.cache import cache_named
from engine.wire.commands import Fork
from engine.wire.status import Chosen, LayerDone, Scheduled, Written
from tests.app.driver import Driver
from tests.app.found import texts_in
from tests.effort import effort

NUM_LAYERS = 6


@pytest.fixture(params=effort(["growing", "paged", "none"], ["growing", "paged", "kivi-4", "h2o", "none"]))
def desk(qapp: QApplication, request: pytest.FixtureRequest) -> Iterator[Driver]:
    driver = Driver(qapp, cache_named(request.param))
    driver.send("Once upon a time")
    driver.steps(2)
    yield driver
    driver.close()


@pytest.fixture
def growing(qapp: QApplication) -> Iterator[Driver]:
    driver = Driver(qapp, cache_named("growing"))
    driver.send("Once upon a time")
    driver.steps(2)
    yield driver
    driver.close()


def on(desk: Driver, count: int = 1) -> None:
    """Go on by so many phases and wait for their pictures."""
    for _ in range(count):
        before = desk.models.phases.now
        passed = 0 if before is None or before.is_written else len(before.passed)
        wall = desk.models.pictures.wall
        desk.window.actions_["run.phase"].trigger()

        def has_come(passed: int = passed, wall: object = wall) -> bool:
            now = desk.models.phases.now
            return now is not None and len(now.passed) == passed + 1 and desk.models.pictures.wall is not wall

        desk.wait_until_idle(has_come)


def test_the_strip_and_the_wall_follow_phase_by_phase(desk: Driver, qapp: QApplication) -> None:
    models, strip = desk.models, desk.window.phases
    assert not strip.isVisible()
    had, is_paged = models.timeline.num_tokens(0), models.status.now.cache.is_paged
    lacking = []
    for number in range(NUM_LAYERS + 2):
        on(desk)
        assert strip.isVisible()
        assert models.phases.now is not None
        assert models.phases.now.place == number
        piece = models.pictures.wall
        if models.status.now.cache.recomputes:
            lacking.append(NUM_LAYERS - (0 if piece is None else len(piece.layers)))
        else:
            assert piece is not None
            assert piece.absent is not None
            assert piece.num_tokens == had + 1
            lacking.append(int((piece.absent[:, 0, -1] == 1).sum()))
        assert models.status.now.suspended is not None
        assert len(models.timeline) == 3
    assert lacking == [6, 5, 4, 3, 2, 1, 0, 0]
    on(desk)
    assert models.phases.now.is_written
    assert len(models.timeline) == 4
    assert models.timeline.num_tokens(0) == had + 1
    assert models.status.now.suspended is None
    assert desk.window.phases.isVisible()
    assert not desk.window.phases.give_up.isVisible()
    assert ("page" in phase_words(models, models.phases.now.passed[0])) == is_paged
    assert_last_picture_is_that_of_an_ordinary_step(desk, qapp)
    desk.steps(1)
    assert not strip.isVisible(), "the step after it is an ordinary one"


def assert_last_picture_is_that_of_an_ordinary_step(desk: Driver, qapp: QApplication) -> None:
    desk.wait_until_idle()
    mine = desk.models.pictures.wall
    assert mine is not None
    other = Driver(qapp, desk.models.status.now.cache)
    other.send("Once upon a time")
    other.steps(2)
    done = len(other.models.timeline)
    other.window.actions_["run.step"].trigger()
    other.wait_until_idle(lambda: len(other.models.timeline) > done)
    theirs = other.models.pictures.wall
    assert theirs is not None
    assert theirs is not mine
    assert np.array_equal(mine.low, theirs.low, equal_nan=True)
    assert np.array_equal(mine.high, theirs.high, equal_nan=True)
    assert mine.absent is None or (theirs.absent is not None and np.array_equal(mine.absent, theirs.absent))
    other.close()


def test_the_notice_of_an_action_ends_with_the_step_that_it_gave_up(growing: Driver) -> None:
    models = growing.models
    on(growing, 2)
    growing.intents.send(Fork(0))
    growing.wait_until_idle(lambda: models.phases.now is None and models.selection.now.seq_id == 1)
    assert models.status.notice.startswith("Sequence 1 begins as sequence 0")
    assert models.status.notice.endswith(" · the step between its phases was given up")


def test_esc_gives_it_up_and_everything_is_as_before(growing: Driver) -> None:
    models, actions = growing.models, growing.window.actions_
    assert not actions["run.cancel"].isEnabled()
    growing.wait_until_idle()
    before = models.pictures.wall
    assert before is not None
    on(growing, 3)
    assert actions["run.cancel"].isEnabled()
    actions["run.cancel"].trigger()
    growing.wait_until_idle(lambda: models.phases.now is None)
    growing.wait_until_idle(lambda: models.pictures.wall is not None and models.pictures.wall.absent is None)
    assert models.status.notice == "The step was given up between its phases: nothing has changed"
    assert models.pictures.wall is not None
    assert np.array_equal(models.pictures.wall.low, before.low, equal_nan=True)
    assert not growing.window.phases.isVisible()
    assert len(models.timeline) == 3


def test_step_finishes_it(growing: Driver) -> None:
    on(growing, 2)
    growing.window.actions_["run.step"].trigger()
    growing.wait_until_idle(lambda: len(growing.models.timeline) == 4)
    assert growing.models.phases.now is not None
    assert growing.models.phases.now.is_written
    assert growing.models.pictures.wall is not None
    assert growing.models.pictures.wall.absent is None


def test_every_picture_says_that_its_step_is_unfinished(growing: Driver) -> None:
    on(growing, 3)
    for panel in (growing.window.wall, growing.window.head):
        assert panel.provenance(panel.state).words == "step 3 so far"
    assert "not written yet" in growing.window.wall.detail.text()
    assert growing.window.top.counter.state is not None
    assert growing.window.top.counter.state.words == "between phases"


def test_a_click_on_an_earlier_phase_shows_its_facts(growing: Driver) -> None:
    on(growing, 4)
    strip = growing.window.phases
    track = strip.track
    assert "‖K‖" in " ".join(texts_in(strip))
    cells = track.cells()
    assert len(cells) == NUM_LAYERS + 3
    QTest.mouseClick(track, Qt.MouseButton.LeftButton, pos=QPointF(cells[0].center()).toPoint())
    assert "is computed at position" in " ".join(texts_in(strip))
    QTest.mouseClick(track, Qt.MouseButton.LeftButton, pos=QPointF(cells[-1].center()).toPoint())
    assert "is computed at position" in " ".join(texts_in(strip)), "a phase that was not reached shows nothing"
    on(growing)
    assert strip.state is not None
    assert strip.state.place == 4, "and the next one is shown when it comes"


def test_what_the_phases_say(growing: Driver) -> None:
    on(growing, NUM_LAYERS + 3)
    now, models = growing.models.phases.now, growing.models
    assert now is not None
    words = {type(event.phase): phase_words(models, event) for event in now.passed}
    text = models.timeline.tokens(0)[-1]
    assert words[Scheduled].endswith(f"is computed at position {text.position}")
    assert "looked most at" in words[LayerDone]
    assert "the most probable" in words[Chosen]
    assert words[Written] == "6 rows written, 1 in each of 6 layers · none evicted"


@pytest.fixture
def fresh(qapp: QApplication) -> Iterator[Driver]:
    """A model, and nothing sent yet."""
    driver = Driver(qapp, cache_named("paged"))
    driver.wait_until_idle()
    yield driver
    driver.close()


def test_the_first_prompt_is_sent_in_phases(fresh: Driver) -> None:
    action, models = fresh.window.actions_["run.phase"], fresh.models
    fresh.window.prompt.edit.set_text("")
    fresh.wait_until_idle()
    assert not action.isEnabled()
    assert "type a prompt first" in action.toolTip()
    fresh.window.prompt.edit.set_text("Once upon a time")
    fresh.wait_until_idle()
    assert action.isEnabled()
    for place in range(NUM_LAYERS + 2):
        assert action.isEnabled()
        action.trigger()
        fresh.wait_until_idle(lambda place=place: models.phases.now is not None and models.phases.now.place == place)
        fresh.wait_until_idle(action.isEnabled)  # the status arrives after the phase
        assert fresh.window.phases.isVisible()
        assert len(models.timeline) == 0
        assert fresh.window.top.counter.state.words == "between phases"
    assert isinstance(models.phases.now.passed[0].phase, Scheduled)
    assert models.phases.now.passed[0].phase.sequences[0].texts[-1] == " time"
    action.trigger()
    fresh.wait_until_idle(lambda: len(models.timeline) == 1)
    assert models.phases.now.is_written
    assert not models.status.now.running


def test_a_first_prompt_in_phases_that_is_given_up_can_begin_again(fresh: Driver) -> None:
    fresh.window.prompt.edit.set_text("Once upon a time")
    fresh.wait_until_idle()
    models, action = fresh.models, fresh.window.actions_["run.phase"]
    for place in range(3):
        action.trigger()
        fresh.wait_until_idle(lambda place=place: models.phases.now is not None and models.phases.now.place == place)
    fresh.window.phases.give_up.click()
    fresh.wait_until_idle(lambda: models.phases.now is None)
    assert len(models.timeline) == 0
    action.trigger()
    fresh.wait_until_idle(lambda: models.phases.now is not None)
    assert models.phases.now.place == 0
    fresh.window.actions_["run.step"].trigger()
    fresh.wait_until_idle(lambda: len(models.timeline) == 1)


def test_finish_finishes_the_step_while_one_looks_back(growing: Driver) -> None:
    models = growing.models
    on(growing, 2)
    done = models.timeline.latest.step
    growing.look_at(0)
    growing.window.phases.finish.click()
    growing.wait_until_idle(lambda: models.timeline.latest.step == done + 1)
    assert models.phases.now.is_written
    assert models.selection.now.step is None
