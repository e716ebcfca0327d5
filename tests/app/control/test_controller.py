from __future__ import annotations

import time
from pathlib import Path

import pytest
from msgspec import structs

from app.control import controller as controllers
from app.control.controller import EAGER_MS, IDLE_MS, PICTURE_WAIT_S, RUNNING_MS, Controller
from app.control.sender import Sender
from app.control.slice_requests import PATIENCE_S, RETRY_S, SliceRequests
from app.draw.token_range import TokenRange
from app.models import Models
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.spec.presets import cache_preset
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.commands import (
    Cancel,
    Export,
    Force,
    HeadRequest,
    LoadModel,
    Pause,
    Rewind,
    Run,
    SetCache,
    Step,
    SubmitPrompt,
    TakeSlice,
    Tokenize,
    WallRequest,
    Watch,
)
from engine.wire.events import CacheChanged, Failed, Restarted, Rewound, StateChanged, Stopped, Tokenized
from engine.wire.page_events import PageAllocated
from engine.wire.slices import Unchanged
from tests.app import samples
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
    controller.on_prompt_submitted("Once upon a time", SamplingParams())
    controller.tick()
    controller.on_run_to(10)
    controller.tick()
    assert len(models.timeline) == 10 + 1
    engine.sent.clear()
    return controller


def test_a_prompt_is_prefilled_once_it_is_taken(controller: Controller, engine: FakeEngine, models: Models) -> None:
    controller.on_prompt_submitted("Once upon a time", SamplingParams())
    assert engine.sent == [SubmitPrompt(Prompt(text="Once upon a time", sampling=SamplingParams()), num_steps=1)]
    controller.tick()
    assert models.timeline.num_tokens(0) == 4
    assert not engine.of(Step), "the engine reads the prompt once it has taken it, and steps nothing else"


def test_a_refused_prompt_does_not_step_the_run_before(controller: Controller, engine: FakeEngine) -> None:
    engine.is_silent = True
    controller.on_prompt_submitted("too long", SamplingParams())
    assert not controller.is_settled
    engine.emit(Failed("The prompt has too many tokens: shorten it.", reply_to=engine.id_of(SubmitPrompt)))
    controller.tick()
    assert not engine.of(Step)
    assert controller._awaited == {}


def test_an_empty_prompt_is_a_banner_and_no_command(controller: Controller, engine: FakeEngine, models: Models) -> None:
    controller.on_prompt_submitted("", SamplingParams())
    assert not engine.sent
    assert "empty" in models.status.failure


def test_records_of_one_tick_are_appended_at_once(controller: Controller, models: Models, engine: FakeEngine) -> None:
    heard: list[int] = []
    models.timeline.appended.connect(lambda: heard.append(len(models.timeline)))
    engine.emit(*samples.story(30))
    controller.tick()
    assert heard == [31]


def test_order_within_a_tick_is_kept(controller: Controller, models: Models, engine: FakeEngine) -> None:
    engine.emit(*samples.story(5), Restarted(), samples.step_record(0), Rewound(None, "all", 0.1))
    controller.tick()
    assert len(models.timeline) == 0


def test_stepping_back_looks_and_stepping_on_returns(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    stepped.on_step_back()
    stepped.on_step_back()
    assert models.selection.now.step == 8
    stepped.on_step()
    stepped.on_step()
    assert models.selection.now.step is None
    assert not engine.of(Step)
    stepped.on_step()
    assert engine.of(Step) == [Step()]


def test_rewind_here_makes_the_past_the_present(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    models.selection.update(step=4, position=12)
    stepped.on_rewind_here()
    assert engine.of(Rewind) == [Rewind(4)]
    stepped.tick()
    assert models.timeline.latest.step == 4
    assert models.selection.now.step is None
    assert models.selection.now.position is None  # the token it stood on is gone
    assert "step 4" in models.status.notice


def test_rewinding_the_live_step_asks_nothing(stepped: Controller, engine: FakeEngine) -> None:
    stepped.on_rewind_here()
    assert not engine.of(Rewind)


def test_run_and_pause(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    models.selection.update(step=3)
    stepped.on_run_or_pause()
    assert models.selection.now.step is None
    assert engine.of(Run) == [Run()]
    engine.emit(StateChanged(samples.status(10, num_tokens=14, running=True)))
    stepped.tick()
    stepped.on_run_or_pause()
    assert engine.of(Pause) == [Pause()]


def test_forcing_a_token_steps_only_at_the_live_end(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    models.selection.update(step=3)
    stepped.on_token_forced(42)
    assert not engine.of(Force)
    assert "rewind" in models.status.notice
    models.selection.update(step=None)
    stepped.on_token_forced(42)
    assert engine.of(Force) == [Force(0, (42,))]
    assert engine.of(Step) == [Step()]


def test_export_takes_what_is_looked_at(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    stepped.on_export_chosen(Path("a.safetensors"), "")
    models.selection.update(step=3)
    stepped.on_export_chosen(Path("b.safetensors"), "note")
    assert engine.of(Export) == [
        Export(Path("a.safetensors"), 0, None, ""),
        Export(Path("b.safetensors"), 0, 7, "note"),
    ]


def test_simple_intents_are_one_command(stepped: Controller, engine: FakeEngine) -> None:
    stepped.on_cancel()
    stepped.on_cache_chosen(cache_preset("static").spec)
    stepped.on_model_chosen(ModelSpec("/models/x"))
    assert engine.of(Cancel) == [Cancel()]
    assert engine.of(SetCache) == [SetCache(CacheSpec("static"))]
    assert engine.of(LoadModel) == [LoadModel(ModelSpec("/models/x"), CacheSpec())]


def test_only_the_newest_text_is_counted(controller: Controller, engine: FakeEngine) -> None:
    counts: list[int] = []
    controller.tokenized.connect(lambda ids: counts.append(len(ids)))
    controller.on_text_edited("a")
    controller.on_text_edited("a b")
    first, second = engine.ids_of(Tokenize)
    engine.emit(Tokenized((1,), ("a",), reply_to=first), Tokenized((1, 2), ("a", " b"), reply_to=second))
    controller.tick()
    assert counts == [2]


def test_failures_are_told_and_taken_back_by_the_next_wish(
    stepped: Controller, models: Models, engine: FakeEngine
) -> None:
    engine.emit(Failed("There is no such folder: choose another."))
    stepped.tick()
    assert models.status.failure.startswith("There is no such folder")
    stepped.on_step()
    assert models.status.failure == ""


def test_another_model_resets_the_selection(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    models.selection.update(layer=5, kv_head=3, position=9)
    other = samples.model_info("Other", shape=samples.geometry(layers=2, kv_heads=1))
    engine.emit(Restarted(), StateChanged(structs.replace(samples.status(), model=other)))
    stepped.tick()
    now = models.selection.now
    assert (now.layer, now.kv_head, now.position, now.step) == (0, 0, None, None)


def test_the_pace_follows_what_happens(
    controller: Controller, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.control.controller.time.monotonic", lambda: 1e9)
    assert controller.interval_ms == IDLE_MS
    engine.is_silent = True
    controller.on_step()
    assert controller.interval_ms == EAGER_MS
    running = StateChanged(samples.status(1, num_tokens=5, running=True))
    engine.emit(running)
    controller.tick()
    assert controller.interval_ms == EAGER_MS  # the step that was asked for is shown as soon as it is there
    engine.emit(samples.step_record(0), running)
    controller.tick()
    assert controller.interval_ms == RUNNING_MS


def test_the_end_is_passed_on(controller: Controller, engine: FakeEngine) -> None:
    heard: list[int] = []
    controller.stopped.connect(lambda: heard.append(1))
    engine.emit(Stopped())
    controller.tick()
    assert heard == [1]


# ---- pictures ----------------------------------------------------------------------------------------------------


class Hand:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def requests_of(models: Models, engine: FakeEngine, *, running: bool, hand: Hand | None = None) -> SliceRequests:
    models.timeline.append(samples.story(10))
    models.status.set(samples.status(10, num_tokens=14, running=running))
    engine.is_silent = True
    return SliceRequests(models, Sender(engine.send), hand or Hand())


def watches(engine: FakeEngine) -> list[list[str]]:
    """The kinds of what was watched, `Watch` by `Watch`."""
    return [[type(one.request).__name__ for one in command.pictures] for command in engine.of(Watch)]


def test_nothing_is_asked_for_what_is_hidden(models: Models, engine: FakeEngine) -> None:
    requests_of(models, engine, running=False).ask()
    assert not engine.sent


def test_pictures_of_the_newest_step_are_watched_together_and_once(models: Models, engine: FakeEngine) -> None:
    requests = requests_of(models, engine, running=True)
    models.viewport.update(wall_size=(40, 16), head_columns=200)
    for step in range(11, 15):
        requests.ask()
        models.timeline.append([samples.step_record(step)])
    assert watches(engine) == [["WallRequest", "HeadRequest"]]
    wall = engine.requests(WallRequest)[0]
    assert (wall.num_tokens, wall.max_columns, wall.max_rows, wall.change) == (14, 40, 16, False)


def test_another_wish_watches_anew_and_what_is_watched_already_keeps_its_id(models: Models, engine: FakeEngine) -> None:
    requests = requests_of(models, engine, running=True)
    models.viewport.update(wall_size=(40, 16), head_columns=200)
    requests.ask()
    before = engine.of(Watch)[0].pictures
    models.selection.update(layer=2)
    requests.answered(engine.addressed(samples.head_slice(before[1].request)))
    requests.ask()
    after = engine.of(Watch)[1].pictures
    assert after[0] == before[0]
    assert (after[1].request.layer, after[1].id > before[1].id) == (2, True)


def test_what_is_hidden_is_watched_no_more(models: Models, engine: FakeEngine) -> None:
    requests = requests_of(models, engine, running=True)
    models.viewport.update(wall_size=(40, 16), head_columns=200)
    requests.ask()
    models.viewport.update(wall_size=None)
    requests.ask()
    models.viewport.update(head_columns=None)
    requests.ask()
    assert watches(engine) == [["WallRequest", "HeadRequest"], ["HeadRequest"], []]


@pytest.mark.parametrize(
    ("wanted", "extent", "positions"),
    [
        (None, "all", (0, 14)),
        (TokenRange(2, 5), "fixed", (2, 5)),
        (TokenRange(8, 14, follows=True), "newest", (8, 14)),
        (TokenRange(0, 90), "all", (0, 14)),
    ],
)
def test_what_becomes_of_the_visible_positions_as_tokens_come(
    models: Models, engine: FakeEngine, wanted: TokenRange | None, extent: str, positions: tuple[int, int]
) -> None:
    requests = requests_of(models, engine, running=True)
    models.viewport.update(head_columns=50, attention_columns=50, head_range=wanted, attention_range=wanted)
    requests.ask()
    head, attention = engine.of(Watch)[0].pictures
    assert (head.extent, attention.extent) == (extent, extent)
    assert (head.request.start, head.request.stop) == positions
    models.timeline.append([samples.step_record(11)])
    for watched in (head, attention):
        requests.answered(
            samples.head_slice(head.request) if watched is head else samples.attention_slice(attention.request, 14)
        )
    requests.ask()
    assert len(engine.of(Watch)) == 1  # the engine keeps up by itself what moves with the tokens


def test_one_on_its_way_then_the_latest_wish(models: Models, engine: FakeEngine) -> None:
    requests = requests_of(models, engine, running=False)
    models.viewport.update(head_columns=200)
    requests.ask()
    for layer in (1, 2, 3):
        models.selection.update(layer=layer)
        requests.ask()
    assert len(engine.sent) == 1
    assert requests.answered(engine.addressed(samples.head_slice(engine.requests(HeadRequest)[0])))
    requests.ask()
    assert [request.layer for request in engine.requests(HeadRequest)] == [0, 3]


def test_a_past_step_is_asked_once_with_its_length_and_nothing_is_watched(models: Models, engine: FakeEngine) -> None:
    requests = requests_of(models, engine, running=False)
    models.viewport.update(wall_size=(40, 16), wants_row=True, head_columns=50, head_range=TokenRange(2, 5))
    requests.ask()
    engine.sent.clear()
    models.selection.update(step=3, change=True, position=2)
    for kind, piece in (("wall", samples.wall_slice), ("head", samples.head_slice)):
        asked = requests._asked[kind].watched.request
        requests.answered(engine.addressed(piece(asked)))
    requests.ask()
    assert watches(engine) == [[]]
    wall = engine.requests(WallRequest)[0]
    assert (wall.num_tokens, wall.previous_tokens, wall.change) == (7, 6, True)
    assert all(command.request.num_tokens == 7 for command in engine.of(TakeSlice))
    head = engine.requests(HeadRequest)[0]
    assert (head.start, head.stop) == (2, 5)
    models.viewport.update(head_range=TokenRange(9, 12))  # of a longer sequence: as many, moved into what there is
    requests.reset()
    requests.ask()
    head = engine.requests(HeadRequest)[-1]
    assert (head.start, head.stop) == (4, 7)
    models.selection.update(step=None)
    requests.reset()
    requests.ask()
    assert [len(kinds) for kinds in watches(engine)] == [0, 3]


def test_updates_of_pictures_that_are_wanted_no_more_are_dropped(models: Models, engine: FakeEngine) -> None:
    requests = requests_of(models, engine, running=True)
    models.viewport.update(wall_size=(40, 16))
    requests.ask()
    first = engine.requests(WallRequest)[0]
    unchanged = engine.addressed(Unchanged(first))
    assert requests.answered(engine.addressed(samples.wall_slice(first)))
    assert requests.answered(unchanged)
    models.selection.update(tensor="values")
    requests.ask()
    assert not requests.answered(unchanged)
    assert requests.answered(engine.addressed(samples.wall_slice(engine.requests(WallRequest)[1])))


def test_answers_from_before_a_reset_are_dropped(models: Models, engine: FakeEngine) -> None:
    requests = requests_of(models, engine, running=False)
    models.viewport.update(wall_size=(40, 16))
    requests.ask()
    late = engine.addressed(samples.wall_slice(engine.requests(WallRequest)[0]))
    requests.reset()
    assert not requests.answered(late)
    requests.ask()
    assert not requests.answered(late)


def test_a_refused_picture_is_not_asked_for_ever(models: Models, engine: FakeEngine) -> None:
    requests = requests_of(models, engine, running=False)
    models.viewport.update(wall_size=(40, 16))
    requests.ask()
    requests.refused(Failed("It was not asked for.", reply_to=10**6))
    assert requests.is_waiting
    requests.refused(Failed("There is no such sequence.", reply_to=engine.id_of(WallRequest)))
    assert not requests.is_waiting
    requests.ask()
    assert len(engine.sent) == 1


def test_a_refused_picture_is_asked_again_after_a_later_step_and_not_at_once(
    models: Models, engine: FakeEngine
) -> None:
    hand = Hand()
    requests = requests_of(models, engine, running=True, hand=hand)
    models.viewport.update(wall_size=(40, 16), wants_outliers=True)
    requests.ask()
    wall, outliers = engine.of(Watch)[-1].pictures
    requests.answered(structs.replace(samples.wall_slice(wall.request), reply_to=wall.id))
    requests.refused(Failed("No room for it.", reply_to=outliers.id))
    hand.now += RETRY_S
    requests.ask()
    assert len(engine.of(Watch)) == 1, "nothing has changed"
    models.timeline.append([samples.step_record(11)])
    requests.ask()
    assert len(engine.of(Watch)) == 2
    again = engine.of(Watch)[-1].pictures
    assert again[0] == wall, "the one that went well stays watched"
    assert type(again[1].request) is type(outliers.request)
    requests.refused(Failed("No room for it.", reply_to=again[1].id))
    models.timeline.append([samples.step_record(12)])
    requests.ask()
    assert len(engine.of(Watch)) == 2, "not with every step of a fast run"
    hand.now += RETRY_S
    requests.ask()
    assert len(engine.of(Watch)) == 3


def test_what_is_never_answered_is_asked_again(models: Models, engine: FakeEngine) -> None:
    hand = Hand()
    requests = requests_of(models, engine, running=False, hand=hand)
    models.viewport.update(wall_size=(40, 16))
    requests.ask()
    hand.now += PATIENCE_S + 0.1
    requests.ask()
    assert len(engine.requests(WallRequest)) == 2


def test_another_cache_asks_again(controller: Controller, models: Models, engine: FakeEngine) -> None:
    controller.on_prompt_submitted("Once", SamplingParams())
    for _ in range(3):
        controller.tick()
    models.viewport.update(wall_size=(40, 16))
    controller.tick()
    asked = len(engine.requests(WallRequest))
    engine.emit(CacheChanged(CacheSpec("static"), "copied", 3.0, samples.cache_bytes(4)))
    controller.tick()
    assert len(engine.requests(WallRequest)) == asked + 1
    assert "Static" in models.status.notice


def test_another_cache_knows_the_tokens_of_before(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    assert models.pages.text(100) == samples.WORDS[0]
    engine.emit(CacheChanged(cache_preset("paged").spec, "converted", 3.0, samples.cache_bytes(4)))
    stepped.tick()
    assert models.pages.text(100) == samples.WORDS[0]
    other = samples.model_info("Other")
    engine.emit(Restarted(), StateChanged(structs.replace(samples.status(), model=other)))
    stepped.tick()
    assert models.pages.text(100) == ""


def test_a_sequence_that_is_gone_gives_its_place_to_the_newest(
    stepped: Controller, models: Models, engine: FakeEngine
) -> None:
    three = tuple(samples.SequenceInfo(seq_id, "decode", 14, 4, 11, None) for seq_id in range(3))
    engine.emit(StateChanged(structs.replace(engine.status, sequences=three)))
    stepped.tick()
    models.selection.update(seq_id=1)
    engine.emit(StateChanged(structs.replace(engine.status, sequences=(three[0], three[2]))))
    stepped.tick()
    assert models.selection.now.seq_id == 2


def test_the_first_token_beyond_a_rewind_is_given_up(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    for position, expected in ((8, None), (7, 7)):  # after step 4 there are eight tokens, 0 to 7
        models.selection.update(step=4, position=position)
        stepped.on_rewind_here()
        stepped.tick()
        assert models.timeline.num_tokens(0) == 8
        assert models.selection.now.position == expected
        stepped.on_run_to(3)
        stepped.tick()


def test_words_wait_while_the_engine_runs_and_none_are_lost(
    controller: Controller, models: Models, engine: FakeEngine
) -> None:
    appended, legible = [], []
    models.timeline.appended.connect(lambda: appended.append(len(models.timeline)))
    models.timeline.legible.connect(lambda: legible.append(len(models.timeline)))
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


def test_a_choice_tells_every_view_of_the_same_step(controller: Controller, models: Models, engine: FakeEngine) -> None:
    running = StateChanged(samples.status(1, num_tokens=5, running=True))
    engine.emit(samples.step_record(0), running)
    controller.tick()
    engine.emit(samples.step_record(1), running)
    controller.tick(with_words=False)
    legible = []
    models.timeline.legible.connect(lambda: legible.append(len(models.timeline)))
    models.selection.update(layer=2)  # all views that follow the selection look at the newest record
    assert legible == [2]


def test_counts_of_a_running_engine_are_known_but_not_announced(
    controller: Controller, models: Models, engine: FakeEngine
) -> None:
    heard: list[object] = []
    models.status.changed.connect(lambda old, new: heard.append(new))
    for count in (5, 6, 7):
        engine.emit(StateChanged(samples.status(1, num_tokens=count, running=True)))
        controller.tick()
    assert len(heard) == 1  # it began to run
    assert models.status.now is not None
    assert models.status.now.sequences[0].num_tokens == 7
    engine.emit(StateChanged(samples.status(1, num_tokens=8)))
    controller.tick()
    assert len(heard) == 2  # it stopped


def test_a_picture_a_person_asked_for_is_awaited_beyond_the_next_step(
    controller: Controller, models: Models, engine: FakeEngine
) -> None:
    models.viewport.update(head_columns=200)
    running = StateChanged(samples.status(1, num_tokens=5, running=True))
    engine.emit(*samples.story(3), running)
    controller.tick()
    controller.tick()  # the first pictures have come
    engine.is_silent = True
    assert controller.interval_ms == RUNNING_MS
    models.selection.update(layer=2)
    request = engine.requests(HeadRequest)[-1]
    assert request.layer == 2
    engine.emit(samples.step_record(4), running)
    controller.tick(with_words=False)
    assert controller.interval_ms == EAGER_MS
    engine.answer(samples.head_slice(request))
    controller.tick(with_words=False)
    assert models.slices.head is not None
    assert models.slices.head.request.layer == 2
    assert controller.interval_ms == RUNNING_MS


def test_a_status_with_an_equal_model_forgets_no_page(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    """Over a wire every status brings a model of its own."""
    first = models.timeline.records[0]
    assert engine.status.model is not None
    models.pages.take(structs.replace(first, page_events=(PageAllocated(0, 7),)))
    engine.emit(StateChanged(structs.replace(engine.status, model=structs.replace(engine.status.model))))
    stepped.tick()
    assert models.pages.facts(7, first.step).owners == (0,)
    other = structs.replace(engine.status.model, fingerprint="sha256:other")
    engine.emit(StateChanged(structs.replace(engine.status, model=other)))
    stepped.tick()
    assert models.pages.facts(7, first.step).owners == ()


def watch_the_wall(controller: Controller, models: Models) -> None:
    models.viewport.update(wall_size=(64, 16))
    controller.tick()
    controller.tick()
    assert models.slices.wall is not None
    assert models.slices.wall.num_tokens == models.timeline.num_tokens(0)


def test_the_picture_of_a_step_is_shown_before_its_words(
    stepped: Controller, models: Models, engine: FakeEngine
) -> None:
    """Words and status take as long as the picture: they come with the tick after it."""
    watch_the_wall(stepped, models)
    before = models.status.now
    told: list[int] = []
    models.timeline.legible.connect(lambda: told.append(models.timeline.num_tokens(0)))
    count = models.timeline.num_tokens(0)
    stepped.on_step()
    stepped.tick(pictures_first=True)
    assert models.slices.wall is not None
    assert models.slices.wall.num_tokens == count + 1
    assert models.status.now is before
    assert not told
    assert not stepped.is_settled
    assert stepped.interval_ms == EAGER_MS
    stepped.tick(pictures_first=True)
    assert models.status.now is not before
    assert told == [count + 1]
    assert stepped.is_settled


def test_words_do_not_wait_for_pictures_that_do_not_come(
    stepped: Controller, models: Models, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    models.timeline.legible.connect(lambda: told.append(models.timeline.num_tokens(0)))
    count = models.timeline.num_tokens(0)
    stepped.on_step()
    stepped.tick(pictures_first=True)
    assert not told
    later = time.monotonic() + PICTURE_WAIT_S
    monkeypatch.setattr(controllers.time, "monotonic", lambda: later)
    stepped.tick(pictures_first=True)
    assert told == [count + 1]


def test_a_failure_and_what_it_leaves_wait_for_no_picture(
    stepped: Controller, models: Models, engine: FakeEngine
) -> None:
    watch_the_wall(stepped, models)
    engine.is_silent = True
    stepped.on_step()
    engine.emit(Failed("No room."), StateChanged(samples.status(1, num_tokens=14, running=True)))
    stepped.tick(pictures_first=True)
    assert models.status.failure == "No room."
    assert models.status.is_running


def test_another_sequence_is_told_of_at_once(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    watch_the_wall(stepped, models)
    engine.is_silent = True
    stepped.on_step()
    assert models.status.now is not None
    changed = structs.replace(models.status.now, sequences=())
    engine.emit(StateChanged(changed))
    stepped.tick(pictures_first=True)
    assert models.status.now is changed


def test_words_of_a_run_are_not_told_with_a_picture(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    """Painting both at once would hold the window up: words that are due come with the tick after."""
    watch_the_wall(stepped, models)
    count = models.timeline.num_tokens(0)
    assert models.status.now is not None
    engine.emit(StateChanged(structs.replace(models.status.now, running=True)))
    stepped.tick()
    told: list[int] = []
    models.timeline.legible.connect(lambda: told.append(models.timeline.num_tokens(0)))
    engine.emit(samples.step_record(engine.next_step))
    stepped.tick(with_words=True, pictures_first=True)
    assert models.slices.wall is not None
    assert models.slices.wall.num_tokens == count + 1
    assert not told
    engine.emit(samples.step_record(engine.next_step))
    stepped.tick(with_words=False, pictures_first=True)
    assert told == [count + 2], "another picture does not put them off again"
    stepped.tick(with_words=False, pictures_first=True)
    assert len(told) == 1
