from __future__ import annotations

from msgspec import structs

from app.control.controller import Controller
from app.models import Models
from engine.spec.cache import CacheSpec, cache_preset
from engine.spec.sampling import SamplingParams
from engine.wire.commands import GoTo
from engine.wire.events import EVENTS, BranchDeleted, CacheChanged, Failed, Restarted, StateChanged, WentTo
from engine.wire.pictures import WallRequest
from engine.wire.status import LayerDone, PhaseReached
from tests.app import samples
from tests.app.fake_engine import FakeEngine


def test_records_of_one_tick_are_appended_at_once(controller: Controller, models: Models, engine: FakeEngine) -> None:
    heard: list[int] = []
    models.timeline.appended.connect(lambda: heard.append(len(models.timeline)))
    engine.emit(*samples.story(30))
    controller.tick()
    assert heard == [31]


def test_order_within_a_tick_is_kept(controller: Controller, models: Models, engine: FakeEngine) -> None:
    engine.emit(*samples.story(5), Restarted(), samples.step_record(0), WentTo(None, "all", 0.1))
    controller.tick()
    assert len(models.timeline) == 0


def test_failures_are_told_and_taken_back_by_the_next_wish(
    stepped: Controller, models: Models, engine: FakeEngine
) -> None:
    engine.emit(Failed("There is no such folder: choose another."))
    stepped.tick()
    assert models.status.failure.startswith("There is no such folder")
    stepped.intents.on_step()
    assert models.status.failure == ""


def test_another_cache_asks_again(controller: Controller, models: Models, engine: FakeEngine) -> None:
    controller.intents.on_prompt_submitted("Once", SamplingParams())
    for _ in range(3):
        controller.tick()
    models.viewport.update(wall_size=(40, 16))
    controller.tick()
    asked = len(engine.requests(WallRequest))
    engine.emit(CacheChanged(CacheSpec("static"), "copied", 3.0, samples.cache_bytes(4)))
    controller.tick()
    assert len(engine.requests(WallRequest)) == asked + 1
    assert "Static" in models.status.notice


def test_another_cache_before_any_prompt_is_told_without_numbers_of_nothing(
    controller: Controller, models: Models, engine: FakeEngine
) -> None:
    engine.emit(CacheChanged(cache_preset("paged").spec, "from the next prompt on", 0.1, samples.cache_bytes(0)))
    controller.tick()
    assert models.status.notice == "Paged: from the next prompt on"


def test_another_cache_knows_the_tokens_of_before(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    assert models.pages.text(100) == samples.WORDS[0]
    engine.emit(CacheChanged(cache_preset("paged").spec, "converted", 3.0, samples.cache_bytes(4)))
    stepped.tick()
    assert models.pages.text(100) == samples.WORDS[0]
    other = samples.model_info("Other")
    engine.emit(Restarted(), StateChanged(structs.replace(samples.status(), model=other)))
    stepped.tick()
    assert models.pages.text(100) == ""


def test_the_first_token_beyond_a_rewind_is_given_up(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    for position, expected in ((8, None), (7, 7)):  # after step 4 there are eight tokens, 0 to 7
        models.selection.update(step=4, position=position)
        stepped.intents.on_go_on_from_here()
        stepped.tick()
        assert models.timeline.num_tokens(0) == 8
        assert models.selection.now.position == expected
        stepped.intents.on_run_to(3)
        stepped.tick()


def test_nothing_that_the_engine_says_is_left_without_a_handler(controller: Controller) -> None:
    assert set(controller.events.handlers) == set(EVENTS)


def test_the_end_of_the_branch_that_is_looked_at_is_deleted(
    stepped: Controller, models: Models, engine: FakeEngine
) -> None:
    stepped.intents.send(GoTo(4))
    stepped.tick()
    stepped.intents.on_run_to(2)
    stepped.tick()
    models.selection.update(step=6)
    timeline = models.timeline
    assert list(timeline.nodes) == [*range(11)]
    engine.emit(BranchDeleted((8, 9, 10)))
    stepped.tick()
    assert list(timeline.nodes) == [*range(8)]
    assert (models.selection.now.step, timeline.is_elsewhere, timeline.is_of_live) == (6, True, False)
    assert list(timeline.live_path.nodes) == [*range(5), 11, 12]


def test_a_step_in_phases_selects_the_layer_that_was_computed(
    stepped: Controller, models: Models, engine: FakeEngine
) -> None:
    """As long as the live step is shown; a past one that is viewed keeps its layer."""

    def computed(layer: int) -> tuple[int, int]:
        engine.emit(PhaseReached(21, samples.LAYERS, LayerDone(layer, ())))
        stepped.tick()
        return models.selection.now.layer, models.selection.now.kv_head

    models.selection.update(layer=0, kv_head=2, step=None)
    assert computed(3) == (3, 2)
    assert computed(4) == (4, 2)
    models.selection.update(step=1)
    assert computed(5) == (4, 2)
