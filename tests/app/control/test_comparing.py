"""What is asked of a comparison, and what the models are told of it."""

from __future__ import annotations

from typing import cast

import pytest
from msgspec.structs import replace

from app.control.controller import Controller
from app.models import Models
from app.models.comparison import SIDES
from app.models.selection import WantedPair
from engine.spec.cache import cache_named
from engine.wire.commands import Cancel, EndComparison, StartComparison, TakePicture
from engine.wire.comparison import ComparisonEnded, ComparisonScanned, FirstDifference, OtherRun, OtherStep
from engine.wire.events import EngineLost, Event, Failed
from engine.wire.pictures import HeadRequest, WallRequest
from tests.app import samples
from tests.app.fake_engine import FakeEngine

KIVI = OtherRun(cache_named("kivi-2"))


def compared(controller: Controller, engine: FakeEngine) -> None:
    controller.intents.send(StartComparison(0, KIVI))
    started = replace(samples.comparison_started(), reply_to=engine.id_of(StartComparison))
    engine.emit(started)
    controller.tick()


def ask_for_pictures(controller: Controller, models: Models, engine: FakeEngine) -> None:
    """A comparison, and the head of both sides is asked for; the engine is silent from then on."""
    compared(controller, engine)
    engine.is_silent = True
    models.viewport.update(compared=WantedPair("head", 64))
    controller.tick()


def asked(engine: FakeEngine) -> list[TakePicture]:
    return [one for one in cast(list[TakePicture], engine.of(TakePicture)) if one.side is not None]


def test_a_comparison_is_asked_for_and_told(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    models.selection.update(seq_id=0)
    stepped.intents.send(StartComparison(0, KIVI))
    assert models.comparison.asked == KIVI
    assert cast(StartComparison, engine.of(StartComparison)[0]).against == KIVI
    compared(stepped, engine)
    assert models.comparison.now is not None
    assert models.comparison.now.b.cache == "KIVI-2"
    assert models.comparison.asked is None
    engine.emit(
        samples.compared_step(4), ComparisonScanned(20, FirstDifference(3, 1, "keys", 0, 5, 1.0, 1.5, 0.4, 1e-4))
    )
    stepped.tick()
    assert models.comparison.num_steps == 5
    assert models.comparison.first is not None
    assert models.comparison.first.channel == 5
    stepped.intents.send(EndComparison())
    assert engine.of(EndComparison)


def test_a_refusal_is_said_by_the_comparison_alone(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    stepped.intents.send(StartComparison(0, KIVI))
    engine.emit(Failed("The other cache is full: give it more room.", reply_to=engine.id_of(StartComparison)))
    stepped.tick()
    assert models.comparison.refusal.startswith("The other cache is full")
    assert models.comparison.asked is None
    assert models.status.failure == ""


def test_a_cancel_ends_what_is_being_started_and_not_what_stands(
    stepped: Controller, models: Models, engine: FakeEngine
) -> None:
    compared(stepped, engine)
    stepped.intents.send(Cancel())
    assert models.comparison.now is not None
    stepped.intents.send(StartComparison(0, KIVI))
    assert models.comparison.asked == KIVI
    stepped.intents.send(Cancel())
    assert (models.comparison.asked, models.comparison.refusal) == (None, "")
    assert models.comparison.now is not None


def test_one_that_was_cancelled_too_late_is_booked_as_what_it_is_and_let_go(
    stepped: Controller, models: Models, engine: FakeEngine
) -> None:
    """A cancel may end something else: the other run starts all the same, and no picture mixes two sequences."""
    models.selection.update(seq_id=0)
    compared(stepped, engine)
    models.selection.update(seq_id=1)
    stepped.intents.send(StartComparison(0, OtherStep(2)))
    late = replace(samples.comparison_started(against=OtherStep(2)), seq_id=1, reply_to=engine.id_of(StartComparison))
    stepped.intents.send(Cancel())
    models.viewport.update(compared=WantedPair("wall", 30, 8))
    engine.emit(late)
    stepped.tick()
    now = models.comparison.now
    assert now is not None
    assert (now.seq_id, now.against) == (1, OtherStep(2))
    assert cast(WallRequest, asked(engine)[-1].request).seq_id == 1
    assert len(engine.of(EndComparison)) == 1
    stepped.intents.send(StartComparison(0, KIVI))
    engine.emit(ComparisonEnded())
    stepped.tick()
    assert models.comparison.now is None
    assert models.comparison.asked == KIVI


def test_the_first_of_two_that_were_asked_for_is_shown_until_the_second_stands(
    stepped: Controller, models: Models, engine: FakeEngine
) -> None:
    stepped.intents.send(StartComparison(0, OtherStep(1)))
    first = engine.id_of(StartComparison)
    stepped.intents.send(StartComparison(0, KIVI))
    engine.emit(replace(samples.comparison_started(against=OtherStep(1)), reply_to=first))
    stepped.tick()
    assert models.comparison.now is not None
    assert (models.comparison.now.against, models.comparison.asked) == (OtherStep(1), KIVI)
    assert not engine.of(EndComparison)
    engine.emit(Failed("The other cache is full: give it more room.", reply_to=engine.id_of(StartComparison)))
    stepped.tick()
    assert (models.comparison.now.against, models.comparison.asked) == (OtherStep(1), None)
    assert models.comparison.refusal.startswith("The other cache is full")


def test_three_pictures_of_one_moment_come_together(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    ask_for_pictures(stepped, models, engine)
    mine = asked(engine)
    assert tuple(one.side for one in mine) == SIDES
    assert len({one.request for one in mine}) == 1
    assert cast(HeadRequest, mine[0].request).num_tokens == samples.PROMPT + 3
    pieces = [replace(samples.head_picture(cast(HeadRequest, one.request)), reply_to=one.id) for one in mine]
    engine.emit(*pieces[:2])
    stepped.tick()
    assert models.comparison.pictures is None
    engine.emit(
        samples.compared_step(4), pieces[2]
    )  # another step: these three are shown all the same, and new ones asked
    stepped.tick()
    assert models.comparison.pictures is not None
    assert models.comparison.pictures.difference is pieces[2]
    assert cast(HeadRequest, asked(engine)[-1].request).num_tokens == samples.PROMPT + 4


def test_over_a_slow_line_three_coarse_pictures_come_before_three_whole_ones(
    stepped: Controller, models: Models, engine: FakeEngine
) -> None:
    ask_for_pictures(stepped, models, engine)
    mine = asked(engine)
    whole = [replace(samples.head_picture(cast(HeadRequest, one.request)), reply_to=one.id) for one in mine]
    coarse = [replace(each, request=replace(each.request, max_columns=7)) for each in whole]
    for pictures, shown in ((coarse, coarse), (whole[:1], coarse), (whole[1:2], coarse), (whole[2:], whole)):
        engine.emit(*pictures)
        stepped.tick()
        assert models.comparison.pictures is not None
        assert [getattr(models.comparison.pictures, side) for side in SIDES] == shown
    engine.emit(samples.compared_step(4))
    stepped.tick()
    engine.emit(*whole)  # of the step before
    stepped.tick()
    assert models.comparison.pictures.a is whole[0]
    assert len(asked(engine)) == 6


@pytest.mark.parametrize(
    "news",
    [
        ComparisonEnded(),
        ComparisonEnded("its sequence is gone"),
        EngineLost("The engine was killed"),
        samples.comparison_started(),
    ],
    ids=["ended", "gone", "lost", "begun anew"],
)
def test_pictures_of_a_comparison_that_is_over_are_shown_no_more(
    stepped: Controller, models: Models, engine: FakeEngine, news: Event
) -> None:
    ask_for_pictures(stepped, models, engine)
    pieces = [replace(samples.head_picture(cast(HeadRequest, one.request)), reply_to=one.id) for one in asked(engine)]
    engine.emit(*pieces)
    stepped.tick()
    assert models.comparison.pictures is not None
    models.viewport.update(compared=WantedPair("head", 32))
    late = [replace(piece, reply_to=one.id) for piece, one in zip(pieces, asked(engine)[3:], strict=True)]
    engine.emit(news)
    stepped.tick()
    assert models.comparison.pictures is None
    engine.emit(*late)
    stepped.tick()
    assert models.comparison.pictures is None


@pytest.mark.parametrize("news", [ComparisonEnded(), samples.comparison_started()], ids=["ended", "begun anew"])
def test_what_becomes_of_pictures_that_nobody_waits_for_is_said_to_nobody(
    stepped: Controller, models: Models, engine: FakeEngine, news: Event
) -> None:
    ask_for_pictures(stepped, models, engine)
    why = "There is no other run to view: start a comparison first."
    engine.emit(news, *(Failed(why, reply_to=one.id) for one in asked(engine)[:3]))
    stepped.tick()
    assert models.status.failure == ""
    assert models.comparison.no_pictures == ""
    engine.emit(Failed(why))
    stepped.tick()
    assert models.status.failure == why


def test_a_refused_picture_is_asked_for_again_after_a_later_step(
    stepped: Controller, models: Models, engine: FakeEngine
) -> None:
    """Side B is behind: what it cannot show of a past step now it can when it has come on."""
    compared(stepped, engine)
    engine.is_silent = True
    models.selection.update(step=2)
    models.viewport.update(compared=WantedPair("head", 64))
    stepped.tick()
    first = asked(engine)
    engine.emit(*(Failed("That step is not there yet.", reply_to=one.id) for one in first))
    stepped.tick()
    stepped.tick()
    assert models.comparison.no_pictures == "That step is not there yet."
    assert asked(engine) == first
    engine.emit(samples.compared_step(4))
    stepped.tick()
    again = asked(engine)[3:]
    assert [(one.side, one.request) for one in again] == [(one.side, one.request) for one in first]
    engine.emit(samples.compared_step(5))
    stepped.tick()
    assert len(asked(engine)) == 6


def test_a_past_step_and_another_picture_are_asked_for(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    compared(stepped, engine)
    models.viewport.update(compared=WantedPair("wall", 30, 8))
    models.selection.update(step=2, lens="values")
    stepped.tick()
    request = cast(WallRequest, asked(engine)[-1].request)
    assert (request.num_tokens, request.lens, request.max_columns) == (samples.PROMPT + 2, "values", 30)


def test_steps_that_were_left_go_when_others_take_their_place(models: Models) -> None:
    for step in (0, 1, 2, 1):
        models.comparison.append(samples.compared_step(step))
    assert [one.step for one in models.comparison.steps] == [0, 1]


def test_its_end_is_told_with_the_reason(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    compared(stepped, engine)
    engine.emit(ComparisonEnded("its sequence is gone"))
    stepped.tick()
    assert models.comparison.now is None
    assert models.comparison.refusal == "The comparison ended: its sequence is gone."
    compared(stepped, engine)
    engine.emit(EngineLost("The engine was killed"))
    stepped.tick()
    assert models.comparison.now is None
    assert "start it again" in models.comparison.refusal


def test_what_is_told_anew_is_of_the_comparison_that_stands(
    stepped: Controller, models: Models, engine: FakeEngine
) -> None:
    """Another one was asked for meanwhile, or refused before; another sequence is viewed."""
    models.selection.update(seq_id=0)
    compared(stepped, engine)
    stepped.intents.send(StartComparison(0, OtherStep(2)))
    engine.emit(samples.comparison_started())
    stepped.tick()
    assert models.comparison.asked == OtherStep(2)
    assert models.comparison.now is not None
    assert models.comparison.now.against == KIVI
    engine.emit(Failed("No.", reply_to=engine.id_of(StartComparison)), samples.comparison_started())
    stepped.tick()
    assert models.comparison.now.against == KIVI
    models.viewport.update(compared=WantedPair("wall", 30, 8))
    models.selection.update(seq_id=1)
    stepped.tick()
    assert cast(WallRequest, asked(engine)[-1].request).seq_id == 0


def test_a_comparison_that_begins_anew_has_no_departure_of_the_one_before(
    stepped: Controller, models: Models, engine: FakeEngine
) -> None:
    for _ in range(2):
        compared(stepped, engine)
        assert (models.comparison.first, models.comparison.num_scanned) == (None, None)
        engine.emit(ComparisonScanned(20, FirstDifference(3, 1, "keys", 0, 5, 1.0, 1.5, 0.4, 1e-4)))
        stepped.tick()
        assert models.comparison.first is not None
