from __future__ import annotations

import pytest
from msgspec import structs
from PySide6.QtCore import QObject

import app.models as refresh_queue
from app.control import sender as waiting
from app.control.controller import FRAME_MS, Controller
from app.control.sender import PICTURE_WAIT_S
from app.draw.grid import TokenRange
from app.models import Models
from engine.wire.events import Failed, StateChanged
from engine.wire.pictures import HeadRequest
from engine.wire.status import CaptureState
from tests.app import samples
from tests.app.fake_engine import FakeEngine


def test_the_pace_follows_what_happens(
    controller: Controller, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.control.sender.time.monotonic", lambda: 1e9)
    assert controller.frame_ms == 0
    engine.is_silent = True
    controller.intents.on_step()
    assert controller.frame_ms == 0
    running = StateChanged(samples.status(1, num_tokens=5, running=True))
    engine.emit(running)
    controller.tick()
    assert controller.frame_ms == 0  # the step that was asked for is shown as soon as it is there
    engine.emit(samples.step_record(0), running)
    controller.tick()
    assert controller.frame_ms == FRAME_MS


def test_words_wait_while_the_engine_runs_and_none_are_lost(
    controller: Controller, models: Models, engine: FakeEngine
) -> None:
    appended, legible = [], []
    models.timeline.appended.connect(lambda: appended.append(len(models.timeline)))
    models.timeline.texts_due.connect(lambda: legible.append(len(models.timeline)))
    running = StateChanged(samples.status(1, num_tokens=5, running=True))
    for step in range(3):
        engine.emit(samples.step_record(step), running)
        controller.tick(with_words=False)
    assert (appended, legible) == ([1, 2, 3], [1])  # it began to run: views tell that, so all are told of the step
    controller.tick()
    assert legible == [1, 3]
    controller.tick()
    assert legible == [1, 3]  # nothing new, nothing told
    engine.emit(samples.step_record(3), StateChanged(samples.status(1, num_tokens=5)))
    controller.tick(with_words=False)
    assert legible == [1, 3, 4]  # it rests: at once


def test_what_measuring_costs_is_no_news_of_a_run(controller: Controller, models: Models, engine: FakeEngine) -> None:
    """It is another number with every step, and every panel follows the status."""
    running = samples.status(1, num_tokens=5, running=True)
    engine.emit(StateChanged(running))
    controller.tick()
    told = []
    models.status.changed.connect(lambda _old, new: told.append(new))
    dearer = structs.replace(running, capture=CaptureState(costs_ms=(("rows", 0.2),)))
    engine.emit(StateChanged(dearer))
    controller.tick()
    assert (told, models.status.now) == ([], dearer)
    less = structs.replace(dearer, capture=CaptureState("statistics"))
    engine.emit(StateChanged(less))
    controller.tick()
    assert told == [less]


def test_a_choice_tells_every_view_of_the_same_step(controller: Controller, models: Models, engine: FakeEngine) -> None:
    running = StateChanged(samples.status(1, num_tokens=5, running=True))
    engine.emit(samples.step_record(0), running)
    controller.tick()
    engine.emit(samples.step_record(1), running)
    controller.tick(with_words=False)
    legible = []
    models.timeline.texts_due.connect(lambda: legible.append(len(models.timeline)))
    models.selection.update(layer=2)  # all views that follow the selection look at the newest record
    assert legible == [2]


def test_a_picture_a_person_asked_for_is_awaited_beyond_the_next_step(
    controller: Controller, models: Models, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting.time, "monotonic", lambda: 1e9)
    models.viewport.update(head_columns=200)
    running = StateChanged(samples.status(1, num_tokens=5, running=True))
    engine.emit(*samples.story(3), running)
    controller.tick()
    controller.tick()  # the first pictures have come
    engine.is_silent = True
    assert controller.frame_ms == FRAME_MS
    models.selection.update(layer=2)
    request = engine.requests(HeadRequest)[-1]
    assert request.layer == 2
    engine.emit(samples.step_record(4), running)
    controller.tick(with_words=False)
    assert controller.frame_ms == 0
    engine.answer(samples.head_picture(request))
    controller.tick(with_words=False)
    assert models.pictures.head is not None
    assert models.pictures.head.request.layer == 2
    assert controller.frame_ms == FRAME_MS


def watch_the_wall(controller: Controller, models: Models) -> None:
    models.viewport.update(wall_size=(64, 16))
    controller.tick()
    controller.tick()
    assert models.pictures.wall is not None
    assert models.pictures.wall.num_tokens == models.timeline.num_tokens(0)


def test_the_picture_of_a_step_is_shown_before_its_words(
    stepped: Controller, models: Models, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words and status take as long as the picture: they come with the tick after it."""
    monkeypatch.setattr(waiting.time, "monotonic", lambda: 1e9)
    watch_the_wall(stepped, models)
    before = models.status.now
    told: list[int] = []
    models.timeline.texts_due.connect(lambda: told.append(models.timeline.num_tokens(0)))
    count = models.timeline.num_tokens(0)
    stepped.intents.on_step()
    stepped.tick(pictures_first=True)
    assert models.pictures.wall is not None
    assert models.pictures.wall.num_tokens == count + 1
    assert models.status.now is before
    assert not told
    assert not stepped.is_idle
    assert not stepped.events.status.is_written
    stepped.tick(pictures_first=True)
    assert models.status.now is not before
    assert told == [count + 1]
    assert stepped.is_idle


def test_words_do_not_wait_for_pictures_that_do_not_come(
    stepped: Controller, models: Models, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1e9]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    told: list[int] = []
    models.timeline.texts_due.connect(lambda: told.append(models.timeline.num_tokens(0)))
    count = models.timeline.num_tokens(0)
    stepped.intents.on_step()
    stepped.tick(pictures_first=True)
    assert not told
    now[0] += PICTURE_WAIT_S
    stepped.tick(pictures_first=True)
    assert told == [count + 1]


def test_a_failure_and_what_it_leaves_wait_for_no_picture(
    stepped: Controller, models: Models, engine: FakeEngine
) -> None:
    watch_the_wall(stepped, models)
    engine.is_silent = True
    stepped.intents.on_step()
    engine.emit(Failed("No room."), StateChanged(samples.status(1, num_tokens=14, running=True)))
    stepped.tick(pictures_first=True)
    assert models.status.failure == "No room."
    assert models.status.now.running


def test_another_sequence_is_told_of_at_once(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    watch_the_wall(stepped, models)
    engine.is_silent = True
    stepped.intents.on_step()
    changed = structs.replace(models.status.now, sequences=())
    engine.emit(StateChanged(changed))
    stepped.tick(pictures_first=True)
    assert models.status.now is changed


def test_what_is_told_of_a_run_is_read_in_turns_pictures_first_and_once(
    stepped: Controller, models: Models, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading and painting all of it at once would hold the window up."""
    watch_the_wall(stepped, models)
    count = models.timeline.num_tokens(0)
    engine.emit(StateChanged(structs.replace(models.status.now, running=True)))
    stepped.tick()
    monkeypatch.setattr(refresh_queue, "TURN_S", 0.0)  # one view a turn
    view = Told(models)
    engine.emit(samples.step_record(engine.next_step), samples.step_record(engine.next_step + 1))
    stepped.tick(pictures_first=True)
    assert (view.read, models.refreshes.is_empty, stepped.is_idle) == ([], False, False)
    turn = models.refreshes.on_turn
    turn()
    assert view.read == [("picture", count + 2)]
    turn()
    assert view.read == [("picture", count + 2), ("words", count + 2)]
    assert models.refreshes.is_empty
    engine.emit(samples.step_record(engine.next_step + 2))
    stepped.tick(pictures_first=True)
    models.refreshes.ask(view.on_words)
    assert view.read[2:] == [("words", count + 3)], "what a person asks for waits for nothing"
    turn()
    assert view.read[3:] == [("picture", count + 3)]
    assert models.refreshes.is_empty, "and is not done again"


class Told(QObject):
    """Asks for a turn when a picture comes and when words do, and notes what it finds then."""

    def __init__(self, models: Models) -> None:
        super().__init__()
        self._models = models
        self.read: list[tuple[str, int]] = []
        models.pictures.changed.connect(self._on_picture)
        models.timeline.texts_due.connect(self._on_texts_due)

    def _on_picture(self, _kind: str) -> None:
        self._models.refreshes.ask(self.on_picture)

    def _on_texts_due(self) -> None:
        self._models.refreshes.ask(self.on_words)

    def on_picture(self) -> None:
        self.read.append(("picture", self._models.timeline.num_tokens(0)))

    def on_words(self) -> None:
        self.read.append(("words", self._models.timeline.num_tokens(0)))


def test_of_another_sequence_all_positions_are_shown(controller: Controller, models: Models) -> None:
    """What was close in the last one means nothing in it; another token of the same one leaves it close."""
    models.viewport.update(head_range=TokenRange(2, 4), attention_range=TokenRange(1, 3))
    models.selection.update(position=3)
    assert models.viewport.now.head_range == TokenRange(2, 4)
    models.selection.update(seq_id=1)
    assert (models.viewport.now.head_range, models.viewport.now.attention_range) == (None, None)
