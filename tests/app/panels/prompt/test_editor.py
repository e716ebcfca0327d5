"""The prompt's editor: long pastes, counting, sampling."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QMimeData
from PySide6.QtWidgets import QLabel
from pytestqt.qtbot import QtBot

from app.panels.prompt.view import MAX_COUNTED_CHARS
from app.shell import Shell
from engine.wire.commands import SubmitPrompt, Tokenize
from engine.wire.events import Tokenized
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.found import button


@pytest.mark.parametrize(
    "text", ["word " * 210_000, "x" * 1_050_000, "\ufffd" * 1_050_000], ids=["text", "line", "fffd"]
)
def test_a_megabyte_paste_is_survivable_and_whole(shell: Shell, engine: FakeEngine, text: str) -> None:
    engine.loaded()
    turn(shell)
    prompt = shell.window.prompt
    prompt.edit.set_text("before ")
    mime = QMimeData()
    mime.setText(text)
    prompt.edit.insertFromMimeData(mime)
    prompt.edit.edited.emit()
    turn(shell)
    assert prompt.edit.document().characterCount() < 20_000, "to lay out all of it takes many seconds"
    assert prompt.edit.text() == "before " + text
    assert "shown in part" in prompt.detail.text()
    assert all(len(asked.text) <= MAX_COUNTED_CHARS for asked in engine.of(Tokenize))  # not a megabyte while typing
    shell.window.actions_["prompt.send"].trigger()
    assert engine.of(SubmitPrompt)[0].prompt.text == "before " + text
    button(prompt, "Clear").click()
    assert not prompt.edit.isReadOnly()


def test_tokens_are_counted_after_a_pause(shell: Shell, engine: FakeEngine, qtbot: QtBot) -> None:
    engine.loaded()
    turn(shell)
    shell.window.prompt.edit.set_text("Hello there")
    qtbot.waitUntil(lambda: any(c.text == "Hello there" for c in engine.of(Tokenize)))
    number = engine.id_of(Tokenize)
    engine.emit(Tokenized((1, 2, 3), ("Hel", "lo", " there"), reply_to=number))
    turn(shell)
    assert shell.window.prompt.detail.text() == "3 of 1,024 tokens"


def test_sampling_is_said_on_its_button(shell: Shell) -> None:
    sampling = shell.window.prompt.sampling_button
    assert sampling.text() == "greedy"
    sampling.popup.temperature.setValue(0.8)
    sampling.popup.top_k.setValue(40)
    sampling.popup.top_p.setValue(0.9)
    assert sampling.text() == "T 0.8 · k 40 · p 0.9"
    params = shell.window.prompt.sampling
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.8, 40, 0.9, None)
    assert any("an answer ends after" in label.text() for label in sampling.popup.findChildren(QLabel))
