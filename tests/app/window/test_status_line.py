"""The status line: notices, progress, warnings and the cost of observing."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QLabel, QPushButton
from pytestqt.qtbot import QtBot

from app.control.requests import USUAL_PACE
from app.models import KeptSession
from app.shell import Shell
from app.window import status_line
from app.window.bars import TransportButton
from app.window.status_line import MAX_LISTED, NonFiniteLog, WorkLine
from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.wire.breakpoints import BreakpointHit
from engine.wire.commands import Cancel
from engine.wire.events import EngineBack, EngineBusy, EngineLost, StateChanged
from engine.wire.records import NonFinite
from engine.wire.status import OpenedFile, Work
from tests.app import samples
from tests.app.conftest import take_steps, turn
from tests.app.fake_engine import FakeEngine
from tests.app.found import button, texts_in


def test_the_status_line_says_nothing_that_never_changes(running: Shell) -> None:
    words = [label.text() for label in running.window.status.findChildren(QLabel)]
    assert any("thread" in word for word in words)
    assert not any("offline" in word for word in words)


def test_a_run_that_waits_says_its_pace_beside_the_speed_of_the_engine(running: Shell, engine: FakeEngine) -> None:
    """At a pace of one token a second the speed alone, 118 tok/s, would be misleading."""
    speed, own = running.window.status.speed, running.window.status.speed.text().removeprefix("last steps ")
    assert own.endswith("tok/s")
    running.actions["pace.1"].trigger()
    assert speed.text() == f"engine {own}"
    engine.emit(StateChanged(replace(engine.status, running=True)))
    turn(running)
    assert speed.text() == f"pace 1 token/s · engine {own}"
    running.actions[f"pace.{USUAL_PACE}"].trigger()
    assert speed.text() == own


def test_work_shows_progress_and_can_be_cancelled(running: Shell, engine: FakeEngine) -> None:
    (work,) = running.window.status.findChildren(WorkLine)
    engine.emit(StateChanged(replace(engine.status, work=Work("Downloading", 3 << 30, 6 << 30))))
    turn(running)
    assert work.isVisible()
    assert work.label.text().endswith("50.0 %")
    engine.emit(StateChanged(replace(engine.status, work=Work("Downloading", 3 << 30, 6 << 30, left_s=71.6))))
    turn(running)
    assert work.label.text().endswith("50.0 %, 72 s left")
    writing = Work("Writing x", 300 << 20, 1200 << 20, left_s=4.2, bytes_per_s=float(200 << 20))
    engine.emit(StateChanged(replace(engine.status, work=writing)))
    turn(running)
    assert work.label.text() == "Writing x  300.0 MiB of 1.2 GiB · 200.0 MiB/s, 4 s left"
    assert not running.window.status.looking.isVisible(), "its room is needed"
    measuring = Work("Sweeping: StreamingLLM on the tokens of this session", 19, 23)
    engine.emit(StateChanged(replace(engine.status, work=measuring)))
    turn(running)
    assert not running.window.status.looking.isVisible()
    label = work.label
    assert label.text() == f"{measuring.label}  19 of 23"
    assert label.fontMetrics().horizontalAdvance(label.text()) <= label.contentsRect().width(), "at 1280 it is whole"
    assert label.brief == "Sweeping  19 of 23", "in a narrow window"
    button(work, "Cancel").click()
    assert engine.of(Cancel)
    engine.emit(StateChanged(engine.status))
    turn(running)
    assert not work.isVisible()
    assert running.window.status.looking.isVisible()


def test_what_is_unusual_about_the_attention_of_a_model_is_said_in_two_words(
    running: Shell, engine: FakeEngine
) -> None:
    """Attention code of its own still returns its weights, so that they are drawn."""
    recurrent = CacheGeometry("Mamba", "mamba", (LayerGeometry(0, "linear", 0, 0, 0, 0, state_elements=8),))
    for shape, told in ((None, "its own attention"), (recurrent, "no attention")):
        model = replace(samples.model_info(shape=shape), captures_attention=False, note="")
        engine.emit(StateChanged(replace(engine.status, model=model)))
        turn(running)
        assert running.window.status.num_warnings.text() == f"no warnings: {told}"


def test_a_notice_goes_once_there_was_time_to_read_it(running: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    status = running.window.status
    news = "At step 5: it was kept as it stood"
    running.models.status.notify(news)
    running.intents.on_step()
    turn(running)
    assert status.note.text() == news, "a step alone takes nothing away that was not read"
    assert status.looking.isVisible()
    remedy = "Step is not possible now. This is an opened file: go on with its model first. " * 3
    running.models.status.notify(remedy)
    assert not status.looking.isVisible(), "its room is needed for the remedy"
    for stays_ms, reading_ms in ((60_000, 0), (0, 60_000), (0, 0)):
        monkeypatch.setattr(status_line, "NEWS_MS", stays_ms)
        monkeypatch.setattr(status_line, "READ_MS", reading_ms)
        assert status.note.text() == remedy
        running.models.status.notify(remedy)
        QApplication.processEvents()
    assert (status.note.text(), status.note.toolTip()) == ("", "")
    assert status.looking.isVisible()


def test_a_click_on_a_disabled_button_says_why(shell: Shell, engine: FakeEngine, qtbot: QtBot) -> None:
    engine.loaded()
    turn(shell)
    buttons = {button.defaultAction().data(): button for button in shell.window.findChildren(TransportButton)}
    qtbot.mouseClick(buttons["run.back"], Qt.MouseButton.LeftButton)
    assert shell.window.status.note.text() == "Step back is not possible now. There is no step to go back to yet."
    shell.window.prompt.edit.clear()
    turn(shell)
    qtbot.mouseClick(shell.window.prompt.send, Qt.MouseButton.LeftButton)
    assert shell.window.status.note.text() == "Send prompt is not possible now. Type a prompt first."
    shell.models.draft.update("The tokenizer is another model's.", "")
    turn(shell)
    assert shell.actions.why_not("prompt.send").endswith("now. The tokenizer is another model's.")


def test_the_reason_why_an_action_is_disabled_goes_once_it_is_enabled(
    shell: Shell, engine: FakeEngine, qtbot: QtBot
) -> None:
    note, edit = shell.window.status.note, shell.window.prompt.edit
    engine.loaded()
    turn(shell)
    qtbot.keyClick(edit, Qt.Key.Key_F5)
    why = note.text()
    assert why == "Run is not possible now. Send a prompt first."
    shell.actions["prompt.send"].trigger()
    turn(shell)
    assert (note.text(), note.toolTip()) == ("", "")
    shell.models.status.notify("At step 3")
    shell.window.status.withdraw(why)
    assert note.text() == "At step 3", "other news stay"


def test_a_message_keeps_its_room_when_other_texts_come(shell: Shell, engine: FakeEngine) -> None:
    note, told = (
        shell.window.status.note,
        "At step 20: restored as it was, steps 0–20 with 1 edit done once more · 92.0 ms",
    )
    engine.loaded()
    turn(shell)
    shell.models.status.notify(told)
    assert not shell.window.status.looking.isVisible()
    take_steps(shell, engine, 20)
    QApplication.processEvents()
    assert shell.window.status.speed.isVisible()
    assert note.text() == told
    assert note.fontMetrics().horizontalAdvance(told) <= note.contentsRect().width()


def bad(shell: Shell, engine: FakeEngine, step: int, *found: NonFinite) -> tuple[str, list[str]]:
    """The line's words about warnings after a step with these bad values, and each warning in words."""
    engine.emit(replace(samples.step_record(step), non_finite=found))
    turn(shell)
    label = shell.window.status.num_warnings
    return label.text(), label.accessibleDescription().split("; ")


def test_every_value_that_is_no_number_is_counted_once(running: Shell, engine: FakeEngine) -> None:
    key, logits = NonFinite("keys", 3, 1, 24, 2), NonFinite("logits", None, None, 25, 7)
    first, second = "2 NaN or Inf in keys, layer 3, head 1, position 24", "7 NaN or Inf in logits, position 25"
    assert running.window.status.num_warnings.text() == "no warnings"
    assert bad(running, engine, 21, key) == ("1 warning", [first])
    assert bad(running, engine, 22, logits) == ("2 warnings", [first, second])
    assert bad(running, engine, 23) == ("2 warnings", [first, second])
    running.models.timeline.go_to(21)
    assert running.window.status.num_warnings.text() == "1 warning"


def test_a_path_of_as_many_steps_is_read_again() -> None:
    """Another branch of the same length has as many records, so that their number does not show the change."""
    log, found = NonFiniteLog(), [NonFinite("keys", 0, 0, position, 1) for position in range(3)]
    plain = samples.step_record(1)
    first, second, other = (replace(plain, step=step, non_finite=(one,)) for step, one in enumerate(found))
    assert log.follow([first]) == [found[0]]
    assert log.follow([first, second]) == found[:2]
    assert log.follow([first, other]) == [found[0], found[2]]
    assert log.follow([first]) == [found[0]]
    assert log.follow([]) == []


@pytest.mark.parametrize(("more", "last"), [(-1, None), (0, None), (1, "and 1 more place"), (5, "and 5 more places")])
def test_of_many_places_the_first_are_listed(running: Shell, engine: FakeEngine, more: int, last: str | None) -> None:
    places = tuple(NonFinite("values", 0, 0, position, 1) for position in range(MAX_LISTED + more))
    text, told = bad(running, engine, 21, *places)
    assert text == f"{MAX_LISTED + more} warnings"
    assert len(told) == MAX_LISTED + (min(more, 0) if last is None else 1)
    assert told[-1] == last if last else "position" in told[-1]


def test_what_the_engine_is_busy_with_stands_where_it_runs(running: Shell, engine: FakeEngine) -> None:
    status, banner = running.window.status, running.window.banner
    before = texts_in(status)
    engine.emit(EngineBusy("changing the cache", 3))
    turn(running)
    assert "busy with changing the cache for 3 s" in texts_in(status)
    engine.emit(EngineBusy("changing the cache", 9), EngineLost("The engine may hang", has_ended=False))
    turn(running)
    assert "busy with changing the cache for 9 s" in texts_in(status)
    assert button(banner, "Restart engine").isVisibleTo(banner)
    engine.emit(EngineBusy("", 0), EngineBack())
    turn(running)
    assert texts_in(status) == before
    assert not running.models.status.loss
    engine.emit(EngineBusy("a decode step", 4), EngineLost("The engine was killed"))
    turn(running)
    assert "engine gone: restart it under Run · Engine" in texts_in(status)


def test_where_a_run_halted_is_not_said_of_the_run_that_follows(running: Shell, engine: FakeEngine) -> None:
    note = running.window.status.note
    engine.emit(BreakpointHit(1, "step = 9", 9, 0, "step 9"))
    turn(running)
    assert note.text().startswith("Halted at step 9")
    engine.emit(StateChanged(replace(engine.status, running=True)))  # of a run so short that this comes after its halt
    turn(running)
    assert note.text().startswith("Halted at step 9")
    engine.emit(samples.step_record(21))
    turn(running)
    assert note.text() == ""


def test_the_way_back_to_the_former_session_is_named_beside_any_message(
    running: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    back, kept = running.window.status.findChild(QPushButton, "return"), running.models.kept_sessions
    kept.replace(KeptSession(Path("former.jsonl"), 1.0, "a session"))
    assert back.text() == "Return to it"
    running.window.status.notify("Measured")
    assert running.window.status.note.text().startswith("The former session is kept")
    assert back.text() == "Return to it", "what came with it follows the offer"
    monkeypatch.setattr(status_line, "ONE_EVENT_S", 0.0)
    running.window.status.notify("The answer has ended: write the next turn")
    assert back.text() == "Return to the former session"


def test_the_speed_of_a_file_is_what_it_recorded(running: Shell, engine: FakeEngine) -> None:
    speed = running.window.status.speed
    assert speed.text().startswith("last steps ")
    file = OpenedFile(Path("x.safetensors"), 100, "Tiny", 21, "", "", "", "", has_rows=True)
    engine.emit(StateChanged(replace(engine.status, opened=file)))
    turn(running)
    assert speed.text().startswith("recorded ")
    assert not running.window.status.looking.isVisible(), "a file does not say what pictures took"
