"""How a sequence stands, in words, and where the window says so."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.models import Models
from app.models.sequence_status import fitting_sequence, sequence_status
from app.shell import Shell
from engine.spec.cache import CacheSpec, cache_preset
from engine.wire.breakpoints import BreakpointHit
from engine.wire.commands import SetCache
from engine.wire.events import StateChanged
from engine.wire.records import NonFinite, Timings
from engine.wire.status import EngineStatus, SequenceInfo
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.models.test_rates import chunk
from tests.app.mouse import move_mouse
from tests.app.window.test_window import PaintCounter


def info(state: str = "decode", num_tokens: int = 9, stop: str | None = None, seq_id: int = 0) -> SequenceInfo:
    return SequenceInfo(seq_id, state, num_tokens, 4550, 11, stop)  # type: ignore[arg-type]


def status(*infos: SequenceInfo, running: bool = False, cache: CacheSpec | None = None) -> EngineStatus:
    return replace(samples.status(5, running=running, cache=cache), sequences=infos)


# ---- words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "words", "role"),
    [
        (status(), "ready", "good"),
        (status(info()), "live", "good"),
        (status(info(), running=True), "running", "accent"),
        (status(info("finished", 1024, "context full")), "context full · 1,024 of 1,024", "warning"),
        (
            status(info("finished", 512, "cache full"), cache=CacheSpec("static", max_length=512)),
            "cache full · 512 of 512",
            "warning",
        ),
        (status(info("finished", 9, "stopped")), "stopped", "muted"),
        (status(info("finished", 9, "end of text")), "end of text", "muted"),
        (status(info("finished", 9, "non-finite logits")), "non-finite logits", "warning"),
        (status(info("prefill", 1920), running=True), "reading 1,920 of 4,550", "accent"),
        (status(info("prefill", 1920)), "read 1,920 of 4,550", "muted"),
        (status(info("waiting", 0)), "waiting", "good"),
    ],
)
def test_how_things_stand_in_words(models: Models, now: EngineStatus, words: str, role: str) -> None:
    models.status.set(now)
    found = sequence_status(models)
    assert (found.words, found.role) == (words, role)
    assert bool(found.why) == (role in ("warning", "muted"))


def test_the_selected_sequence_is_the_one_that_is_told(models: Models) -> None:
    models.status.set(status(info("finished", 1024, "context full"), info(seq_id=1)))
    assert sequence_status(models).is_full
    models.selection.update(seq_id=1)
    assert sequence_status(models).words == "live"
    hit = BreakpointHit(None, "entropy > 2 and tokens > 5", 5, 1, "entropy 2.31, tokens 9")
    models.status.set(replace(status(info(seq_id=1)), halted_by=hit))
    halted = sequence_status(models)
    assert halted.words == "halted · entropy > 2 and tokens …"
    assert "entropy 2.31" in halted.why


def gave_up(state: str, num_tokens: int, stop: str | None = None, seq_id: int = 0) -> SequenceInfo:
    return replace(info(state, num_tokens, stop, seq_id), num_prompt_tokens=4, num_preemptions=1)


def test_a_sequence_without_pages_waits_or_has_ended_and_says_why(models: Models) -> None:
    models.status.set(status(gave_up("waiting", 0)))
    found = sequence_status(models)
    assert (found.words, found.role) == ("waiting for pages", "warning")
    assert found.why.startswith("it gave its pages up to another sequence")
    models.status.set(status(gave_up("finished", 0, "cache full"), cache=CacheSpec("paged", num_pages=7)))
    found = sequence_status(models)
    assert (found.words, found.role, found.is_full) == ("cache full · pages given up", "warning", True)
    assert found.why.endswith("its pages went to another sequence")
    models.status.set(status(info("waiting", 0, seq_id=1)))
    models.selection.update(seq_id=1)
    assert sequence_status(models).words == "waiting"
    models.timeline.append([replace(samples.step_record(0), waiting=(1,))])
    assert sequence_status(models).words == "waiting for pages"
    assert "the page pool has no room for it yet" in sequence_status(models).why


def test_who_waits_while_another_decodes_reads_nothing(models: Models) -> None:
    models.status.set(status(info(), gave_up("waiting", 0, seq_id=1), running=True))
    assert sequence_status(models).words == "running"
    models.status.set(status(info("waiting", 0), running=True))
    assert sequence_status(models).words == "reading 0 of 4,550"


def test_what_was_given_up_is_read_again_to_its_end(models: Models) -> None:
    models.timeline.append(samples.story(10))
    known = models.timeline.num_tokens(0)
    models.status.set(status(gave_up("prefill", 8), running=True))
    assert sequence_status(models).words.startswith(f"reading 8 of {known}")
    models.status.set(status(gave_up("prefill", 8)))
    assert sequence_status(models).words == f"read 8 of {known}"


def test_how_long_a_prompt_still_takes_stands_behind_how_far_it_is_read(models: Models) -> None:
    models.timeline.append([chunk(number, 128, took_ms=600, at_s=1000 + number) for number in range(5)])
    models.status.set(status(info("prefill", 640), running=True))
    assert sequence_status(models).words == "reading 640 of 4,550 · 31 s left"


def test_where_the_selected_sequence_is_gone_the_newest_of_those_left_fits(models: Models) -> None:
    models.status.set(status(*(info(seq_id=seq_id) for seq_id in (0, 2, 5))))
    for chosen, fitting in ((2, 2), (4, 5)):
        models.selection.update(seq_id=chosen)
        assert fitting_sequence(models) == fitting


# ---- in the window -----------------------------------------------------------------------------------------------


@pytest.fixture
def full(shell: Shell, engine: FakeEngine) -> Shell:
    """A window whose only sequence has just filled the model's context."""
    engine.loaded()
    turn(shell)
    shell.window.actions_["prompt.send"].trigger()
    turn(shell)
    shell.intents.on_run_to(20)
    turn(shell)
    assert not shell.window.top.remedies.isVisible()
    assert shell.window.actions_["run.step"].isEnabled()
    model = replace(engine.status.model, goes_beyond_context=True)
    ended = replace(engine.status, sequences=(info("finished", 1024, "context full"),), model=model)
    engine.emit(StateChanged(ended))
    turn(shell)
    return shell


def test_a_full_context_says_so_everywhere(full: Shell) -> None:
    counter, actions = full.window.top.counter, full.window.actions_
    assert counter.accessibleName().endswith("context full · 1,024 of 1,024")
    assert "take a cache that keeps a window" in counter.toolTip()
    for key in ("run.step", "run.run", "run.to"):
        assert not actions[key].isEnabled()
        assert "Not now: the model's context is full: go back" in actions[key].toolTip()
    assert "the model's context is full" in full.window.status.note.text()


def test_the_ways_on_act(full: Shell, engine: FakeEngine, qtbot: QtBot) -> None:
    remedies = full.window.top.remedies
    assert remedies.isVisible()
    back, window, prompt = remedies.fill().actions()
    window.trigger()
    assert engine.of(SetCache) == [SetCache(cache_preset("streamingllm").spec)]
    full.window.activateWindow()
    prompt.trigger()
    QApplication.processEvents()
    assert QApplication.focusWidget() is full.window.prompt.edit
    assert full.window.prompt.edit.textCursor().selectedText() == full.window.prompt.edit.text()
    back.trigger()
    turn(full)
    assert full.models.selection.now.step == 19
    assert full.window.top.earlier.isVisible()
    assert not remedies.isVisible()


def test_a_full_cache_is_offered_a_growing_one(full: Shell, engine: FakeEngine) -> None:
    cache = CacheSpec("static", max_length=512)
    ended = replace(engine.status, sequences=(info("finished", 512, "cache full"),), cache=cache)
    engine.emit(StateChanged(ended))
    turn(full)
    full.window.top.remedies.fill().actions()[1].trigger()
    assert engine.of(SetCache) == [SetCache(CacheSpec())]


def test_a_window_is_offered_only_to_models_that_go_on_with_it(full: Shell, engine: FakeEngine) -> None:
    ended = replace(engine.status, sequences=(info("finished", 1024, "context full"),))
    engine.emit(StateChanged(ended))
    turn(full)
    words = [action.text() for action in full.window.top.remedies.fill().actions()]
    assert len(words) == 2
    assert not any("StreamingLLM" in word for word in words)


def test_an_engine_that_ended_while_it_loaded_is_gone_and_its_model_not_unloaded(full: Shell) -> None:
    models = full.models
    models.status.set(replace(models.status.now, model=None))
    assert sequence_status(models).words == "model unloaded"
    models.status.lose_engine("gone")
    assert sequence_status(models).words == "engine gone"


def test_the_speed_of_the_last_steps_is_not_the_speed_of_now(full: Shell, engine: FakeEngine) -> None:
    speed = full.window.status.speed
    assert speed.text().startswith("last steps ")
    assert speed.font().weight() == QFont.Weight.Normal
    engine.emit(StateChanged(replace(engine.status, running=True)))
    turn(full)
    assert speed.text().endswith(" tok/s")
    assert "last steps" not in speed.text()
    assert speed.font().weight() == QFont.Weight.DemiBold


def test_the_prompt_says_how_far_it_is_read(full: Shell, engine: FakeEngine) -> None:
    reading = replace(engine.status, sequences=(info("prefill", 1920),), running=True)
    engine.emit(StateChanged(reading))
    turn(full)
    assert full.window.prompt.detail.text() == "reading 1,920 of 4,550"
    assert full.window.top.counter.accessibleName().endswith("reading 1,920 of 4,550")


def test_values_that_are_no_numbers_are_counted_one_by_one(full: Shell, engine: FakeEngine) -> None:
    warnings = full.window.status.num_warnings
    assert warnings.text() == "no warnings"
    for step, words in ((21, "1 warning"), (22, "2 warnings")):
        bad = (NonFinite("keys", 2, 1, step + 3, 4),)
        engine.emit(replace(samples.step_record(step), non_finite=bad))
        turn(full, 1)
        assert warnings.text().startswith(words)


def test_what_is_unusual_about_a_model_stands_in_words(full: Shell, engine: FakeEngine) -> None:
    notes = "random weights: only the shape is real; no tokenizer: prompts are token ids"
    model = replace(samples.model_info("shape", random_weights=True), has_tokenizer=False, note=notes)
    engine.emit(StateChanged(replace(engine.status, model=model)))
    turn(full)
    warnings = full.window.status.num_warnings
    assert warnings.text() == "2 warnings: random weights · no tokenizer"
    assert warnings.accessibleDescription().count("random") == 1


def test_a_stopped_sequence_cannot_be_stopped_again(full: Shell, engine: FakeEngine) -> None:
    full.window.arrange("inspect")
    full.window.docks.docks["sequences"].raise_()
    stop = full.window.sequences.stop
    engine.emit(StateChanged(replace(engine.status, sequences=(info(),))))
    turn(full)
    assert stop.isEnabled()
    engine.emit(StateChanged(replace(engine.status, sequences=(info("finished", 9, "stopped"),))))
    turn(full)
    assert not stop.isEnabled()


def test_the_timeline_says_which_step_is_shown(full: Shell) -> None:
    bar = full.window.timeline
    assert bar.accessibleDescription() == "step 20"
    counter = PaintCounter()
    bar.installEventFilter(counter)
    full.models.selection.update(step=3)
    QApplication.processEvents()
    bar.removeEventFilter(counter)
    assert bar.accessibleDescription() == "step 3"
    assert counter.count


def test_dragging_the_timeline_to_its_end_is_live_again(full: Shell, qtbot: QtBot) -> None:
    bar = full.window.timeline
    middle = bar.rect().center()
    qtbot.mousePress(bar, Qt.MouseButton.LeftButton, pos=middle)
    assert full.models.selection.now.step == 10
    end = QPoint(bar.width() - 2, middle.y())
    move_mouse(bar, end, held=Qt.MouseButton.LeftButton)
    assert full.models.selection.now.step is None
    qtbot.mouseRelease(bar, Qt.MouseButton.LeftButton, pos=end)


def test_the_tip_of_a_step_has_each_word_beside_its_own_number(full: Shell) -> None:
    record = replace(samples.step_record(21), timings=Timings(1.0, 2.0, 3.0, 4.0))
    full.models.timeline.append([record])
    full.models.timeline.announce()
    tip = full.window.timings.plot.toolTip()
    told = "step 21: forward 2.00 ms, prepare 1.00 ms, sample 3.00 ms, measuring 4.00 ms"
    assert tip.splitlines()[0] == told
