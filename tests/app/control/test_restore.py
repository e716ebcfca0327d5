"""An engine that dies in the middle of something: what the window says until it begins again, and what comes back."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.control.conditions import needs_model, needs_step
from app.draw.token_range import TokenRange
from app.models.sequence_status import sequence_status
from app.shell import Shell
from engine.spec.model import ModelSpec
from engine.wire.commands import StopSequence, SubmitPrompt, TakeSlice, Tokenize, Watch
from engine.wire.events import EngineLost, Restarted, SequenceInfo, StateChanged, Submitted
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine

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


def submitted(shell: Shell, engine: FakeEngine, number: int, seq_id: int, ids: tuple[int, ...]) -> None:
    info = SequenceInfo(seq_id, "decode", len(ids), len(ids), 11, None)
    engine.status = replace(engine.status, sequences=(*engine.status.sequences, info))
    texts = tuple(samples.word(position) for position in range(len(ids)))
    engine.emit(StateChanged(engine.status), Submitted(seq_id, ids, texts, reply_to=number))
    turn(shell)


def prompts(engine: FakeEngine) -> list[SubmitPrompt]:
    return [command for command in engine.sent if isinstance(command, SubmitPrompt)]


def test_one_that_dies_while_it_runs_does_not_run_on(running: Shell, engine: FakeEngine) -> None:
    engine.is_silent = True
    engine.emit(StateChanged(replace(engine.status, running=True)), samples.step_record(21), KILLED)
    turn(running)
    assert not running.models.status.is_running
    assert len(running.models.timeline) == 22


def test_after_a_hung_one_was_restarted_pictures_are_asked_for_again(running: Shell, engine: FakeEngine) -> None:
    engine.is_silent = True
    running.intents.on_prompt_submitted("a prompt that is never taken", samples.status().sampling)
    engine.emit(EngineLost("The engine has been silent for 8 seconds", has_ended=False))
    turn(running)
    begin_again(running)
    assert running.controller.requests.sequences.is_empty
    loaded(running, engine)
    submitted(running, engine, engine.id_of(SubmitPrompt), 0, tuple(range(24)))
    engine.sent.clear()
    engine.emit(samples.step_record(0))
    turn(running)
    assert engine.of(Watch)


def test_a_prompt_that_was_not_read_to_its_end_comes_back_whole(running: Shell, engine: FakeEngine) -> None:
    more = tuple(range(100, 150))
    waiting = SequenceInfo(1, "waiting", 0, len(more), None, None)
    engine.status = replace(engine.status, sequences=(*engine.status.sequences, waiting))
    engine.emit(StateChanged(engine.status), Submitted(1, more, tuple("x" for _ in more)))
    turn(running)
    lose(running, engine)
    begin_again(running)
    first, second = prompts(engine)
    assert first.prompt.token_ids == tuple(token.token_id for token in running.models.timeline.tokens(0))
    assert (second.prompt.token_ids, second.alone) == (more, False)
    assert running.models.status.notice.endswith("all sequences are read anew; the steps before are gone")


def test_a_second_death_on_the_way_loses_nothing(running: Shell, engine: FakeEngine) -> None:
    ids = tuple(token.token_id for token in running.models.timeline.tokens(0))
    lose(running, engine)
    begin_again(running)
    loaded(running, engine)
    assert running.models.status.now == samples.status()
    assert not len(running.models.timeline)
    lose(running, engine)
    begin_again(running)
    (again,) = prompts(engine)
    assert (again.prompt.token_ids, again.alone) == (ids, True)


def test_what_had_stopped_stops_and_what_was_selected_is(running: Shell, engine: FakeEngine) -> None:
    stopped = SequenceInfo(3, "finished", 30, 24, 11, "stopped")
    engine.status = replace(engine.status, sequences=(*engine.status.sequences, stopped))
    engine.emit(StateChanged(engine.status), Submitted(3, tuple(range(24)), tuple("x" * 24)))
    turn(running)
    running.models.selection.update(seq_id=0, layer=2, position=5)
    turn(running)
    wanted = TokenRange(2, 9)
    running.models.viewport.update(head_range=wanted)
    lose(running, engine)
    begin_again(running)
    first, second = engine.ids_of(SubmitPrompt)[-2:]
    loaded(running, engine)
    submitted(running, engine, first, 0, tuple(range(24)))
    submitted(running, engine, second, 1, tuple(range(24)))
    assert engine.of(StopSequence) == [StopSequence(1)]
    now = running.models.selection.now
    assert (now.seq_id, now.layer, now.position) == (0, 2, 5)
    assert running.models.viewport.now.head_range == wanted


def test_while_it_is_gone_nothing_looks_live(running: Shell, engine: FakeEngine) -> None:
    lose(running, engine)
    models, window = running.models, running.window
    assert (sequence_status(models).words, sequence_status(models).role) == ("engine gone", "warning")
    assert window.status._place.text() == "engine gone: restart it in the Run menu"
    assert "engine gone" in window.wall.provenance_text
    models.selection.update(step=4)
    turn(running)
    assert "on its way" not in window.wall.provenance_text


def test_the_banner_stays_whatever_is_pressed_and_nobody_is_asked(running: Shell, engine: FakeEngine) -> None:
    lose(running, engine)
    running.intents.on_sequence_stopped(0)
    assert running.models.status.failure.startswith("The engine was killed")
    assert needs_model(running.models) == needs_step(running.models) == "the engine is gone: restart it"
    running.intents.on_text_edited("typed while nobody counts")
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
    kinds = {type(command.request).__name__ for command in engine.of(TakeSlice)}  # type: ignore[attr-defined]
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
    head._pin.click()
    models.viewport.update(attention_layer=4)
    assert head.is_pinned
    assert models.status.now is not None
    assert models.status.now.model is not None
    small = replace(models.status.now.model, fingerprint="another one")
    engine.emit(StateChanged(replace(models.status.now, model=small)))
    turn(running)
    assert (models.viewport.now.head_place, models.viewport.now.attention_layer) == (None, None)
    assert not head.is_pinned
    assert not running.window.attention.is_pinned


def test_the_ids_of_a_prompt_that_is_half_read_are_those_of_all_of_it(running: Shell) -> None:
    timeline = running.models.timeline
    fed = tuple(token.token_id for token in timeline.tokens(0))
    timeline.begin(0, (*fed, 7, 8, 9), ("x",) * (len(fed) + 3))
    assert timeline.all_ids(0) == (*fed, 7, 8, 9)
