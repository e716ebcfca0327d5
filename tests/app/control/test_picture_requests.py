from __future__ import annotations

import pytest
from msgspec import structs

from app.control.picture_requests import PATIENCE_S, RETRY_S, PictureRequests
from app.control.sender import Sender
from app.draw.grid import TokenRange
from app.models import Models
from app.shell import Shell
from engine.spec.edit import Rows, Zero
from engine.wire.commands import TakePicture, Watch
from engine.wire.events import Failed
from engine.wire.pictures import AttentionRequest, HeadRequest, RowRequest, Unchanged, WallRequest
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine


class Hand:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def requests_of(models: Models, engine: FakeEngine, *, running: bool, hand: Hand | None = None) -> PictureRequests:
    models.timeline.append(samples.story(10))
    models.status.set(samples.status(10, num_tokens=14, running=running))
    engine.is_silent = True
    return PictureRequests(models, Sender(engine.send), hand or Hand())


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
    requests.answered(engine.addressed(samples.head_picture(before[1].request)))
    requests.ask()
    after = engine.of(Watch)[1].pictures
    assert after[0] == before[0]
    assert (after[1].request.layer, after[1].id > before[1].id) == (2, True)


def test_the_map_is_asked_of_the_head_that_was_clicked_and_other_lenses_of_all(
    models: Models, engine: FakeEngine
) -> None:
    requests = requests_of(models, engine, running=True)
    for lens, head in (("attention", 0), ("attention-map", 2), ("attention-map", 3)):
        models.viewport.update(attention_columns=80, attention_lens=lens, query_head=head)
        models.selection.update(kv_head=1)
        requests.ask()
        asked = engine.requests(AttentionRequest)[-1]
        assert (asked.lens, asked.head, asked.latest) == (lens, head, 0)
        requests.reset()
    models.viewport.update(attention_lens="attention-received", attention_latest=16)
    requests.ask()
    assert engine.requests(AttentionRequest)[-1].latest == 16


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
            samples.head_picture(head.request) if watched is head else samples.attention_picture(attention.request, 14)
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
    assert requests.answered(engine.addressed(samples.head_picture(engine.requests(HeadRequest)[0])))
    requests.ask()
    assert [request.layer for request in engine.requests(HeadRequest)] == [0, 3]


def test_a_past_step_is_asked_once_with_its_length_and_nothing_is_watched(models: Models, engine: FakeEngine) -> None:
    requests = requests_of(models, engine, running=False)
    models.viewport.update(wall_size=(40, 16), wants_row=True, head_columns=50, head_range=TokenRange(2, 5))
    requests.ask()
    wall, head = (engine.requests(kind)[-1] for kind in (WallRequest, HeadRequest))
    engine.sent.clear()
    models.selection.update(step=3, change=True, position=2)
    for piece in (samples.wall_picture(wall), samples.head_picture(head)):
        requests.answered(engine.addressed(piece))
    requests.ask()
    assert watches(engine) == [[]]
    wall = engine.requests(WallRequest)[0]
    assert (wall.num_tokens, wall.previous_tokens, wall.change) == (7, 6, True)
    assert all(command.request.num_tokens == 7 for command in engine.of(TakePicture))
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
    assert requests.answered(engine.addressed(samples.wall_picture(first)))
    assert requests.answered(unchanged)
    models.selection.update(lens="values")
    requests.ask()
    assert not requests.answered(unchanged)
    assert requests.answered(engine.addressed(samples.wall_picture(engine.requests(WallRequest)[1])))


def test_answers_from_before_a_reset_are_dropped(models: Models, engine: FakeEngine) -> None:
    requests = requests_of(models, engine, running=False)
    models.viewport.update(wall_size=(40, 16))
    requests.ask()
    late = engine.addressed(samples.wall_picture(engine.requests(WallRequest)[0]))
    requests.reset()
    assert not requests.answered(late)
    requests.ask()
    assert not requests.answered(late)


def test_a_refusal_from_before_a_reset_is_told_to_nobody(models: Models, engine: FakeEngine) -> None:
    requests = requests_of(models, engine, running=False)
    models.viewport.update(wall_size=(40, 16))
    requests.ask()
    (late,) = engine.of(Watch)[-1].pictures
    requests.reset()
    assert requests.refused(Failed("A session file has no K and V.", reply_to=late.id))
    requests.ask()
    assert requests.refused(Failed("A session file has no K and V.", reply_to=late.id))
    assert requests.is_waiting
    assert not requests.refused(Failed("No room for it.", reply_to=engine.of(Watch)[-1].pictures[0].id))
    assert not requests.refused(Failed("There is no such sequence.", reply_to=10**6))


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
    requests.answered(structs.replace(samples.wall_picture(wall.request), reply_to=wall.id))
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


def test_a_picture_that_came_after_it_was_refused_is_asked_no_more(models: Models, engine: FakeEngine) -> None:
    """Of what is watched a step may be refused and the next one come."""
    hand = Hand()
    requests = requests_of(models, engine, running=True, hand=hand)
    models.viewport.update(wall_size=(40, 16))
    requests.ask()
    (wall,) = engine.of(Watch)[-1].pictures
    requests.refused(Failed("No room for it.", reply_to=wall.id))
    requests.answered(structs.replace(samples.wall_picture(wall.request), reply_to=wall.id))
    models.timeline.append([samples.step_record(11)])
    hand.now += RETRY_S
    requests.ask()
    assert len(engine.of(Watch)) == 1


def test_the_row_of_a_token_is_asked_from_the_step_on_that_computed_it(models: Models, engine: FakeEngine) -> None:
    requests = requests_of(models, engine, running=False)
    models.viewport.update(wants_row=True)
    computed = models.timeline.num_tokens(0, 8)
    for position in (computed, computed - 1):
        models.selection.update(step=8, position=position)
        requests.ask()
    assert [(one.position, one.num_tokens) for one in engine.requests(RowRequest)] == [(computed - 1, computed)]


def test_what_is_never_answered_is_asked_again(models: Models, engine: FakeEngine) -> None:
    hand = Hand()
    requests = requests_of(models, engine, running=False, hand=hand)
    models.viewport.update(wall_size=(40, 16))
    requests.ask()
    hand.now += PATIENCE_S + 0.1
    requests.ask()
    assert len(engine.requests(WallRequest)) == 2


def test_a_moment_before_an_edit_is_named_as_its_tokens_are_as_many(running: Shell, engine: FakeEngine) -> None:
    running.models.selection.update(step=7)
    turn(running)
    assert {command.node for command in engine.of(TakePicture)} == {None}, "the number of tokens tells it"
    running.models.selection.update(step=None)
    running.intents.on_edited(Zero(0, Rows(1, 3)))
    turn(running)
    edited = running.models.edits.made[0].step
    for step, named in ((edited - 1, edited - 1), (7, 7)):
        engine.sent.clear()
        running.models.selection.update(step=step)
        turn(running)
        assert {command.node for command in engine.of(TakePicture)} == {named}
