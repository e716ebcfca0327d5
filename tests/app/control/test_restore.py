"""An engine that dies in the middle of something: what the window says until it begins again, and what comes back."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.control.conditions import reasons
from app.draw.grid import TokenRange
from app.kit.asking import Question
from app.models.sequence_status import sequence_status
from app.shell import Shell
from engine.spec.model import ModelSpec
from engine.spec.sampling import SamplingParams
from engine.wire.commands import Redo, StopSequence, TakePicture, Tokenize, Watch
from engine.wire.events import EngineLost, Failed, Redone, Restarted, StateChanged, StepRedone, WentTo
from engine.wire.pages import PageAllocated, PoolStep
from engine.wire.records import SequenceAdded, SequenceStopped
from engine.wire.status import SequenceInfo
from engine.wire.tree import Node
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.found import texts_in

KILLED = EngineLost("The engine was killed (SIGKILL)")


def lose(shell: Shell, engine: FakeEngine) -> None:
    engine.is_silent = True
    engine.emit(KILLED)
    turn(shell)
    engine.sent.clear()


def begin_again(shell: Shell) -> None:
    shell.models.status.set_engine("process")
    shell.controller.replay()


def loaded(shell: Shell, engine: FakeEngine) -> None:
    """The next engine says what an engine says while it loads."""
    engine.status = samples.status()
    engine.emit(StateChanged(replace(engine.status, model=None)), Restarted(), StateChanged(engine.status))
    turn(shell)


def redone(shell: Shell, engine: FakeEngine, step: int | None, count: int, why: str = "", anew: int = 0) -> None:
    info = SequenceInfo(0, "decode", samples.PROMPT + (step or 0), samples.PROMPT, 11, None)
    engine.status = replace(samples.status(), sequences=(info,), step=step)
    engine.emit(StateChanged(engine.status), Redone(step, count, 1200.0, why, anew, reply_to=engine.id_of(Redo)))
    turn(shell)


def plans(engine: FakeEngine) -> list[Redo]:
    return [command for command in engine.sent if isinstance(command, Redo)]


def test_steps_are_done_once_more_after_the_model_is_loaded_again_and_not_in_place_of_a_file(
    running: Shell, engine: FakeEngine
) -> None:
    running.controller.replay(after_load=True)
    engine.emit(Restarted())
    turn(running)
    assert len(plans(engine)) == 1
    redone(running, engine, 20, 21)
    assert len(running.models.timeline) == 21
    engine.sent.clear()
    running.controller.replay(after_load=True)
    engine.emit(Restarted(reply_to=7))  # of a file that the engine was asked to open before
    turn(running)
    engine.emit(Restarted())
    turn(running)
    assert not plans(engine), "the window no longer has these steps"
    assert len(running.models.timeline) == 0
    assert not running.controller.requests.replaying.is_going_on


def test_one_that_dies_while_it_runs_does_not_run_on(running: Shell, engine: FakeEngine) -> None:
    engine.is_silent = True
    engine.emit(StateChanged(replace(engine.status, running=True)), samples.step_record(21), KILLED)
    turn(running)
    assert not running.models.status.now.running
    assert len(running.models.timeline) == 22


def test_after_a_hung_one_was_restarted_pictures_are_asked_for_again(running: Shell, engine: FakeEngine) -> None:
    engine.is_silent = True
    running.intents.on_prompt_submitted("a prompt that is never taken", samples.status().sampling)
    engine.emit(EngineLost("The engine has been silent for 8 seconds", has_ended=False))
    turn(running)
    begin_again(running)
    assert running.controller.requests.sequences.is_empty
    loaded(running, engine)
    engine.sent.clear()
    redone(running, engine, 20, 21)
    assert engine.of(Watch)


def test_while_steps_are_repeated_nothing_is_called_live(running: Shell, engine: FakeEngine) -> None:
    wall, models = running.window.wall, running.models
    assert (wall.provenance(wall.state).words, sequence_status(models).words) == ("live cache", "live")
    lose(running, engine)
    begin_again(running)
    loaded(running, engine)
    source = wall.provenance(wall.state)
    assert (source.words, source.kind) == ("live cache · from before", "past")
    assert sequence_status(models).words == "repeating steps"
    redone(running, engine, 20, 21)
    assert sequence_status(models).words == "live"
    assert wall.provenance(wall.state).words == "live cache"


def test_where_steps_cannot_be_repeated_the_engine_is_told_as_it_is(running: Shell, engine: FakeEngine) -> None:
    """As after a snapshot without its steps was gone on with: the engine has no sequence, and says why."""
    lose(running, engine)
    begin_again(running)
    loaded(running, engine)
    engine.status = replace(samples.status(), sequences=(), step=None)
    why = "The run went on from a snapshot: open that again."
    engine.emit(Failed(why, reply_to=engine.id_of(Redo)), StateChanged(engine.status))
    turn(running)
    models = running.models
    assert models.status.failure == why
    assert sequence_status(models).words == "ready"
    assert not models.status.now.sequences
    assert len(models.timeline) == 0


def test_every_step_of_the_timeline_is_done_once_more_and_stays_on_the_screen(
    running: Shell, engine: FakeEngine
) -> None:
    """The plan says what the records say; what is selected and looked back at stays, and no status hides it."""
    records = list(running.models.timeline)
    running.models.selection.update(layer=2, position=5, step=7)
    wanted = TokenRange(2, 9)
    running.models.viewport.update(head_range=wanted)
    turn(running)
    before = running.models.selection.now
    lose(running, engine)
    begin_again(running)
    (plan,) = plans(engine)
    assert plan.nodes == tuple(map(Node.of, records))
    assert (plan.at, plan.changes) == (20, ())
    loaded(running, engine)
    engine.status = replace(engine.status, sequences=(), step=3)
    engine.emit(StateChanged(engine.status))
    turn(running)
    status = running.models.status.now
    assert status is not None
    assert [info.seq_id for info in status.sequences] == [0], "it has not got there yet"
    redone(running, engine, 20, 21)
    assert list(running.models.timeline) == records
    assert running.models.selection.now == before
    assert running.models.viewport.now.head_range == wanted
    assert running.models.status.notice == (
        "The engine begins again where it was: all its 21 steps were done once more, exactly as first, in 1.20 s"
    )


def test_rows_that_an_earlier_run_computed_are_not_called_the_same(running: Shell, engine: FakeEngine) -> None:
    lose(running, engine)
    begin_again(running)
    loaded(running, engine)
    redone(running, engine, 20, 21, anew=32)
    assert running.models.status.notice == (
        "The engine begins again where it was: all its 21 steps were done once more, exactly as first but for the "
        "rounding of 32 tokens in pages of an earlier run, computed anew, in 1.20 s"
    )


def test_what_could_not_be_done_once_more_is_no_step_any_more(running: Shell, engine: FakeEngine) -> None:
    running.models.selection.update(step=18, position=35)
    lose(running, engine)
    begin_again(running)
    loaded(running, engine)
    redone(running, engine, 11, 12, "it was cancelled")
    assert [record.step for record in running.models.timeline] == list(range(12))
    now = running.models.selection.now
    assert (now.step, now.position) == (None, None)
    assert running.models.status.notice == (
        "The engine begins again at step 11; the tokens after it come next: it was cancelled"
    )


def test_what_was_done_since_the_newest_step_is_wanted_too(running: Shell, engine: FakeEngine) -> None:
    added, stopped = SequenceAdded(1, tuple(range(100, 150)), SamplingParams()), SequenceStopped(0)
    engine.status = replace(engine.status, pending=(added, stopped))
    engine.emit(StateChanged(engine.status))
    turn(running)
    lose(running, engine)
    begin_again(running)
    (plan,) = plans(engine)
    assert (plan.at, plan.changes) == (20, (added, stopped))


def test_what_a_step_took_is_not_done_twice_where_its_status_did_not_come(running: Shell, engine: FakeEngine) -> None:
    engine.status = replace(engine.status, pending=(SequenceStopped(0),))
    engine.emit(StateChanged(engine.status))
    turn(running)
    engine.is_silent = True
    engine.emit(replace(samples.step_record(21), changes=(SequenceStopped(0),)))
    turn(running)
    lose(running, engine)
    begin_again(running)
    (plan,) = plans(engine)
    assert (len(plan.nodes), plan.at, plan.changes) == (22, 21, ())


def test_every_branch_is_wanted_and_the_live_one_is_gone_to(running: Shell, engine: FakeEngine) -> None:
    engine.emit(replace(samples.step_record(21), parent=5), WentTo(20, "it was kept", 1.0))
    turn(running)
    lose(running, engine)
    begin_again(running)
    (plan,) = plans(engine)
    assert [node.step for node in plan.nodes] == list(range(22))
    assert (plan.nodes[21].parent, plan.at) == (5, 20)


def test_a_second_death_on_the_way_loses_nothing(running: Shell, engine: FakeEngine) -> None:
    lose(running, engine)
    begin_again(running)
    (first,) = plans(engine)
    loaded(running, engine)
    assert len(running.models.timeline) == 21
    lose(running, engine)
    begin_again(running)
    assert plans(engine) == [first]


def test_a_persons_prompt_on_the_way_is_wanted_instead(running: Shell, engine: FakeEngine) -> None:
    lose(running, engine)
    begin_again(running)
    loaded(running, engine)
    engine.emit(Restarted(reply_to=99))
    turn(running)
    assert not len(running.models.timeline)
    assert not running.controller.requests.replaying.is_going_on


def test_the_pages_of_a_step_done_once_more_are_those_of_the_new_pool(running: Shell, engine: FakeEngine) -> None:
    lose(running, engine)
    begin_again(running)
    loaded(running, engine)
    pool = PoolStep(5, 16, 9, None, 1, ((3, 7),), 7, 1, 0, 0, 9, 0, 0)
    engine.emit(StepRedone(4, (PageAllocated(0, 3),), (pool,)))
    redone(running, engine, 20, 21)
    (page_map,) = running.models.timeline.at(4).page_maps  # type: ignore[union-attr]
    assert (page_map.num_used, int(page_map.cell(3)["fill"])) == (1, 7)
    kept = running.models.history.record(4)
    assert kept is not None
    assert kept.page_maps[0] is page_map, "whoever comes back to this path sees them too"
    assert running.models.pages.facts(3, 4).owners == (0,)
    assert running.models.pages.facts(3, 3).owners == ()


def test_while_it_is_gone_nothing_looks_live(running: Shell, engine: FakeEngine) -> None:
    lose(running, engine)
    models, window = running.models, running.window
    assert (sequence_status(models).words, sequence_status(models).role) == ("engine gone", "warning")
    assert "engine gone: restart it under Run · Engine" in texts_in(window.status)
    assert "engine gone" in window.wall.provenance_label.text
    models.selection.update(step=4)
    turn(running)
    assert "on its way" not in window.wall.provenance_label.text


def test_the_banner_stays_whatever_is_pressed_and_nobody_is_asked(running: Shell, engine: FakeEngine) -> None:
    lose(running, engine)
    running.intents.send(StopSequence(0))
    assert running.models.status.failure.startswith("The engine was killed")
    found = reasons(running.models)
    assert found["model"] == found["step"] == "the engine is gone: restart it"
    running.intents.take(Question(Tokenize("typed while nobody counts")))
    assert not engine.of(Tokenize)


def test_looking_back_while_a_picture_is_on_its_way_asks_for_the_one_looked_at(
    running: Shell, engine: FakeEngine
) -> None:
    engine.is_silent = True
    running.models.selection.update(layer=4)
    turn(running, 1)
    assert engine.of(Watch)
    engine.sent.clear()
    running.models.selection.update(step=3)
    turn(running, 1)
    kinds = {type(command.request).__name__ for command in engine.of(TakePicture)}  # type: ignore[attr-defined]
    assert {"WallRequest", "HeadRequest"} <= kinds


def test_the_kind_that_runs_already_is_not_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from app.control.engine import Engine
    from engine.spec.cache import CacheSpec
    from tests.app.control.test_engine import Recording

    monkeypatch.setattr("app.control.engine.open_client", lambda kind: Recording())
    engine = Engine("thread")
    assert not engine.is_as_chosen
    engine.start(ModelSpec(), CacheSpec())
    assert engine.is_as_chosen
    engine.choice = "process"
    assert not engine.is_as_chosen


def test_another_model_takes_the_pins_away(running: Shell, engine: FakeEngine) -> None:
    models, head = running.models, running.window.head
    models.selection.update(layer=4)
    turn(running)
    head.pin_button.click()
    models.viewport.update(attention_layer=4)
    assert head.pin_button.isChecked()
    assert models.status.now.model is not None
    small = replace(models.status.now.model, fingerprint="another one")
    engine.emit(StateChanged(replace(models.status.now, model=small)))
    turn(running)
    assert (models.viewport.now.head_place, models.viewport.now.attention_layer) == (None, None)
    assert not head.pin_button.isChecked()
    assert not running.window.attention.pin_button.isChecked()
