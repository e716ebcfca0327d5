from __future__ import annotations

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QEnterEvent
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.kit.theme import current_theme
from app.models.draft import random_prompt, token_ids
from app.panels.prompt.view import IDS
from app.shell import Shell
from engine.errors import InputError
from engine.spec.cache import CacheSpec
from engine.spec.sampling import SamplingParams
from engine.wire.commands import SubmitPrompt, Tokenize
from engine.wire.events import Failed, StateChanged, Tokenized
from engine.wire.status import ModelInfo, Work
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine

SHAPE = replace(samples.model_info("shape", random_weights=True), has_tokenizer=False)
SHAPE = replace(SHAPE, geometry=replace(SHAPE.geometry, vocab_size=5000))


def become(shell: Shell, engine: FakeEngine, model: ModelInfo, cache: CacheSpec | None = None) -> None:
    engine.status = replace(engine.status, model=model, cache=cache or engine.status.cache)
    engine.emit(StateChanged(engine.status))
    turn(shell)


def counted(shell: Shell, engine: FakeEngine, num_tokens: int) -> None:
    """The engine's answer to the newest question for the tokens of the text."""
    shell.window.prompt.edit._pause.stop()  # nothing newer is asked for on the way, however long that takes
    shell.window.prompt.edit.edited.emit()
    number = engine.id_of(Tokenize)
    engine.emit(Tokenized(tuple(range(num_tokens)), ("x",) * num_tokens, reply_to=number))
    turn(shell)


def detail(shell: Shell) -> str:
    return shell.window.prompt.detail.text()


def sent(engine: FakeEngine) -> list[tuple[str | None, tuple[int, ...] | None]]:
    return [(command.prompt.text, command.prompt.token_ids) for command in engine.of(SubmitPrompt)]


# ---- ids and random tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["7 30 1", "[7, 30, 1]", " 7,30\n1 ", "[7 30 1"])
def test_ids_as_people_write_them(text: str) -> None:
    assert token_ids(text, 31, 0) == (7, 30, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "type token ids first"),
        ("Once upon", "“Once” is no token id"),
        ("7 -1", "“-1” is no token id"),
        ("7 ²", "“²” is no token id"),
        ("7 31", "token id 31 is outside the vocabulary of 31: use 0 to 30"),
        ("random tokens: 0", "0 random tokens are no prompt"),
        ("random tokens: 9,999,999", "ask for 1 to 1,000,000"),
    ],
)
def test_what_is_no_prompt_of_ids_is_said(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words.replace("(", "\\(")):
        token_ids(text, 31, 0)


def test_random_tokens_are_the_seeds() -> None:
    one = token_ids(random_prompt(4096), 31, 0)
    assert (len(one), min(one), max(one)) == (4096, 0, 30)
    assert token_ids("Random tokens: [4,096]", 31, 0) == one
    assert token_ids(random_prompt(4096), 31, 1) != one


def test_empty_panels_say_what_takes_the_first_step(shell: Shell, engine: FakeEngine) -> None:
    window, prompt = shell.window, shell.window.prompt
    panels = window.wall, window.head, window.next_token, window.attention

    def said() -> list[str]:
        return [panel.empty.text() for panel in panels]

    engine.emit(StateChanged(replace(engine.status, model=None, work=None)))
    turn(shell)
    assert all(words.endswith(": choose a model, then press F10.") for words in said())
    engine.emit(StateChanged(replace(engine.status, model=None, work=Work("Opening a.json", 0, None))))
    turn(shell)
    assert not any("F10" in words for words in said())
    engine.loaded()
    turn(shell)
    assert all(words.endswith(": press F10.") for words in said())
    prompt.edit.set_text("")
    prompt.edit.edited.emit()
    assert all(words.endswith(": type a prompt and press F10.") for words in said())
    prompt.choose(IDS)
    prompt.edit.set_text("7 Once")
    prompt.edit.edited.emit()
    wall, *others = said()
    assert wall.endswith("once the prompt can be sent. " + prompt.warning.text())
    assert "“Once” is no token id: give ids like" in wall
    assert all("change the prompt" in words for words in others)
    prompt.edit.set_text("7 9")
    prompt.edit.edited.emit()
    assert all(words.endswith(": press F10.") for words in said())


# ---- a model without a tokenizer ---------------------------------------------------------------------------------


def test_a_model_without_a_tokenizer_takes_ids(shell: Shell, engine: FakeEngine, qtbot: QtBot) -> None:
    prompt, send = shell.window.prompt, shell.window.actions_["prompt.send"]
    become(shell, engine, SHAPE)
    assert not send.isEnabled()
    assert "type token ids first" in send.toolTip(), "the text that was there is not read as ids"
    assert not prompt.send.isEnabled()
    assert "type token ids first" in prompt.send.toolTip()
    send.trigger()
    assert "Token ids" in prompt.edit.placeholderText()
    prompt.edit.setFocus()
    qtbot.keyClicks(prompt.edit, "40 33 4999")
    assert send.isEnabled()
    assert detail(shell) == "3 of 1,024 tokens"
    qtbot.keyClick(prompt.edit, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    assert sent(engine) == [(None, (40, 33, 4999))]
    assert engine.of(Tokenize) == []


def test_what_speaks_against_a_prompt_stands_at_the_prompt(shell: Shell, engine: FakeEngine) -> None:
    prompt = shell.window.prompt
    become(shell, engine, replace(samples.model_info(), has_tokenizer=False))
    prompt.edit.set_text("hello world")
    turn(shell)
    QApplication.processEvents()
    assert not shell.window.actions_["prompt.send"].isEnabled()
    assert detail(shell).startswith("“hello” is no token id")
    assert prompt.detail.brief == "no token ids"
    whole = "“hello” is no token id: give ids like 40977 33717."
    assert (prompt.warning.text(), prompt.warning.isVisible(), prompt.warning.wordWrap()) == (whole, True, True)
    assert whole in shell.window.status.warnings
    warning = prompt.warning
    assert warning.minimumHeight() >= warning.heightForWidth(warning.width()) > 0, "no line of it is ever cut"
    color = prompt.detail.palette().color(prompt.detail.foregroundRole()).name()
    assert color == current_theme().warning
    prompt.edit.set_text("1 2 3")
    turn(shell)
    assert detail(shell) == "3 of 1,024 tokens"
    assert not prompt.warning.isVisible()
    assert whole not in shell.window.status.warnings
    color = prompt.detail.palette().color(prompt.detail.foregroundRole()).name()
    assert color == current_theme().muted


def test_random_tokens_are_ready(shell: Shell, engine: FakeEngine, qtbot: QtBot) -> None:
    prompt = shell.window.prompt
    engine.loaded()
    turn(shell)
    assert not prompt.random.isVisible()
    become(shell, engine, SHAPE)
    assert prompt.random.isVisible()
    assert prompt.random.text() == "Random tokens: 1,024"  # as many as there is room for
    qtbot.mouseClick(prompt.random, Qt.MouseButton.LeftButton)
    assert detail(shell) == "1,024 of 1,024 tokens · random"
    qtbot.keyClick(prompt.edit, Qt.Key.Key_Backspace)
    assert detail(shell) == "102 of 1,024 tokens · random"
    prompt.seed.setValue(5)
    shell.window.actions_["prompt.send"].trigger()
    assert sent(engine) == [(None, token_ids("random tokens: 102", 5000, 5))]
    engine.status = replace(
        engine.status, sequences=(replace(engine.status.sequences[0], sampling=SamplingParams(seed=8)),)
    )
    engine.emit(StateChanged(engine.status))
    turn(shell)
    assert prompt.seed.value() == 8
    shell.window.actions_["prompt.send"].trigger()
    assert sent(engine)[1:] == [(None, token_ids("random tokens: 102", 5000, 8))], "of the seed that is shown"


# ---- counts ------------------------------------------------------------------------------------------------------


def test_a_count_belongs_to_the_model_that_is_loaded(shell: Shell, engine: FakeEngine) -> None:
    engine.loaded()
    turn(shell)
    shell.window.prompt.edit.edited.emit()
    shell.window.prompt.chat.turns.edited.emit()  # the pause after its first, empty turn was made ends now
    counted(shell, engine, 12)
    assert detail(shell) == "12 of 1,024 tokens", "a conversation that is not shown asks for no count of its own"
    assert shell.window.prompt.detail.brief == "12/1,024", "in a narrow strip the numbers stay"
    label = shell.window.prompt.detail
    label.enterEvent(QEnterEvent(QPointF(), QPointF(), QPointF()))
    assert "12 of 1,024 tokens" in label.toolTip(), "the words are told to who points there"
    become(shell, engine, samples.model_info("Other"))
    assert detail(shell) == ""
    counted(shell, engine, 7)
    assert detail(shell) == "7 of 1,024 tokens"
    become(shell, engine, SHAPE)
    assert "7 of" not in detail(shell)


def test_too_many_tokens_are_said_before_they_are_sent(shell: Shell, engine: FakeEngine, qtbot: QtBot) -> None:
    prompt, send = shell.window.prompt, shell.window.actions_["prompt.send"]
    engine.loaded()
    turn(shell)
    counted(shell, engine, 1024)
    assert send.isEnabled()
    assert not prompt.first.isVisible()
    counted_color = prompt.detail.palette().color(prompt.detail.foregroundRole()).name()
    prompt.edit.set_text("a long text")
    counted(shell, engine, 12365)
    assert detail(shell) == "12,365 of 1,024 tokens"
    color = prompt.detail.palette().color(prompt.detail.foregroundRole()).name()
    assert (counted_color, color) == (current_theme().muted, current_theme().warning)
    assert not send.isEnabled()
    assert "more than the 1,024" in shell.window.actions_.reason("prompt.send")
    assert prompt.first.text() == "Send the first 1,024"
    qtbot.mouseClick(prompt.first, Qt.MouseButton.LeftButton)
    assert sent(engine) == [(None, tuple(range(1024)))]


def test_the_room_is_that_of_the_cache(shell: Shell, engine: FakeEngine) -> None:
    engine.loaded()
    turn(shell)
    counted(shell, engine, 600)
    assert shell.window.actions_["prompt.send"].isEnabled()
    become(shell, engine, samples.model_info(), CacheSpec("static", max_length=512))
    assert detail(shell) == "600 of 512 tokens"
    assert not shell.window.actions_["prompt.send"].isEnabled()


def test_typing_more_takes_the_old_count_back(shell: Shell, engine: FakeEngine) -> None:
    engine.loaded()
    turn(shell)
    counted(shell, engine, 5000)
    assert not shell.window.actions_["prompt.send"].isEnabled()
    shell.window.prompt.edit.set_text("short")
    assert detail(shell) == ""
    assert shell.window.actions_["prompt.send"].isEnabled()


def test_half_a_character_is_said_at_the_prompt_and_by_no_banner(shell: Shell, engine: FakeEngine) -> None:
    engine.loaded()
    turn(shell)
    shell.window.prompt.edit.edited.emit()
    number = engine.id_of(Tokenize)
    engine.emit(Failed("The prompt holds half a character: remove it.", reply_to=number))
    turn(shell)
    assert shell.models.status.failure == ""
    assert "half a character" in shell.window.actions_.reason("prompt.send")


def test_an_empty_prompt_cannot_be_sent(shell: Shell, engine: FakeEngine) -> None:
    engine.loaded()
    turn(shell)
    assert shell.window.actions_["prompt.send"].isEnabled()
    shell.window.prompt.edit.set_text("")
    assert shell.window.actions_.reason("prompt.send") == "type a prompt first"
