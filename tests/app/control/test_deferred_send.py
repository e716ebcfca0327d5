"""A prompt sent while a model is being loaded goes out when that model is there, and only then."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from PySide6.QtTest import QTest

from app.shell import Shell
from app.window import status_line
from engine.wire.commands import Step, SubmitPrompt
from engine.wire.events import Restarted, StateChanged
from engine.wire.status import Work
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine


def load(shell: Shell, engine: FakeEngine) -> None:
    engine.emit(StateChanged(replace(engine.status, work=Work("Loading another", 3, 9, is_loading=True))))
    turn(shell)


def send(shell: Shell, engine: FakeEngine) -> list[str]:
    """Send the prompt, and return what has been sent."""
    shell.actions["prompt.send"].trigger()
    turn(shell)
    return sent(engine)


def sent(engine: FakeEngine) -> list[str]:
    return [command.prompt.text for command in engine.of(SubmitPrompt)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_starting", [True, False])
def test_the_prompt_is_sent_once_when_the_model_is_there(shell: Shell, engine: FakeEngine, is_starting: bool) -> None:
    if not is_starting:
        load(shell, engine)
    shell.window.prompt.edit.set_text("as it was when it was sent")
    assert send(shell, engine) == send(shell, engine) == []
    shell.window.prompt.edit.set_text("as it is when it can go")
    load(shell, engine)
    assert sent(engine) == []
    engine.emit(Restarted())
    engine.loaded()
    turn(shell)
    assert sent(engine) == ["as it is when it can go"]
    engine.loaded()
    turn(shell)
    assert len(sent(engine)) == 1


@pytest.mark.parametrize(("text", "ids"), [("5 3", [(5, 3)]), ("5 abc", [])])
def test_token_ids_are_sent_as_such_or_not_at_all(
    shell: Shell, engine: FakeEngine, text: str, ids: list[tuple[int, ...]]
) -> None:
    """Written before the model is there, they are read only then."""
    shell.window.prompt.choose("ids")
    shell.window.prompt.edit.set_text(text)
    send(shell, engine)
    engine.emit(Restarted())
    engine.loaded()
    turn(shell)
    assert [command.prompt.token_ids for command in engine.of(SubmitPrompt)] == ids


def test_every_step_asked_for_during_the_load_is_taken(shell: Shell, engine: FakeEngine) -> None:
    load(shell, engine)
    for _ in range(3):
        shell.actions["run.step"].trigger()
    assert shell.models.status.notice.endswith("then 2 steps more")
    assert not engine.of(SubmitPrompt)
    engine.emit(Restarted())
    engine.loaded()
    turn(shell)
    assert len(engine.of(SubmitPrompt)) == 1
    assert engine.of(Step) == [Step(2)]
    assert len(shell.models.timeline) == 3


def test_what_is_to_come_is_said_until_it_comes(
    shell: Shell, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model may be loaded for minutes: a message that vanished after seconds read as if the prompt were forgotten."""
    monkeypatch.setattr(status_line, "NEWS_MS", 0)
    monkeypatch.setattr(status_line, "READ_MS", 0)
    load(shell, engine)
    send(shell, engine)
    status = shell.window.status
    QTest.qWait(5)
    assert status.note.text() == "The prompt is sent as soon as the model is loaded"
    engine.emit(Restarted())
    engine.loaded()
    turn(shell)
    assert "is sent as soon" not in status.note.text()


def test_a_step_before_the_prompt_is_answered_follows_it(shell: Shell, engine: FakeEngine) -> None:
    engine.loaded()
    turn(shell)
    engine.is_silent = True
    for _ in range(3):
        shell.actions["run.step"].trigger()
    assert len(engine.of(SubmitPrompt)) == 1
    assert engine.of(Step) == [Step(), Step()]


def test_of_a_load_that_was_cancelled_nothing_is_left(running: Shell, engine: FakeEngine) -> None:
    load(running, engine)
    send(running, engine)
    engine.loaded()  # the model of before, and its steps
    turn(running)
    assert sent(engine) == []
    assert "was not sent" in running.models.status.notice
    load(running, engine)
    engine.emit(Restarted())
    engine.loaded()
    turn(running)
    assert sent(engine) == [], "the wish was of the load before"


def test_an_empty_prompt_is_refused_while_a_model_is_loaded(shell: Shell, engine: FakeEngine) -> None:
    load(shell, engine)
    shell.window.prompt.edit.set_text("")
    turn(shell)
    assert not shell.actions["prompt.send"].isEnabled()
