"""A conversation in the window on the real engine: turns, the rendered text, the answer, what is kept of the cache."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from app.control.requests import USUAL_PACE
from app.panels.prompt.chat import FILE, MAX_SHOWN, NONE, RenderedText, conversation_of, pieces_of
from engine.spec.cache import PRESETS
from engine.spec.model import ModelSpec
from engine.spec.sampling import PLAIN_NAME, Chat, Turn
from engine.wire import commands
from engine.wire.commands import GoTo, StopSequence
from engine.wire.pages import ContinuedFrom
from tests.app.driver import Driver
from tests.app.found import button
from tests.engine.chat.templates import THINKING
from tests.engine.session.talks import ids_of, talking

BEGIN, END = "<|im_start|>", "<|im_end|>"


@pytest.fixture(scope="module")
def driver(qapp: QApplication) -> Iterator[Driver]:
    driver = Driver(qapp, PRESETS["paged"].spec)
    yield driver
    driver.close()


def load(driver: Driver, template: str | None) -> None:
    """Load the model that has this chat template, unless it is there, and begin a conversation with it."""
    models, source = driver.models, talking(template).info.source
    if models.status.now.model is None or models.status.now.model.source != source:
        driver.intents.on_model_chosen(ModelSpec(source))
        driver.wait_until_idle(lambda: models.status.now.model is not None and models.status.now.model.source == source)
    driver.window.prompt.choose("chat")
    driver.window.prompt.chat.new_line.click()
    driver.window.prompt.chat.template.activated.emit(0)


def write(driver: Driver, text: str, turn: int = -1) -> None:
    """Write a turn and wait until it is rendered."""
    chat = driver.window.prompt.chat
    chat.turns.rows[turn].edit.set_text(text)
    driver.until(lambda: driver.window.prompt.tokens.ids is not None)
    shown = time.monotonic() + 0.25  # the pause in typing may have begun before
    driver.until(lambda: time.monotonic() > shown and driver.window.prompt.tokens.ids is not None)


def says(driver: Driver, text: str) -> None:
    """Make the selected sequence generate this text; its last token is chosen and not yet computed."""
    seq_id, ids = driver.models.selection.now.seq_id, ids_of(text)
    driver.intents.send(commands.Force(seq_id, ids))
    driver.intents.send(commands.Step(len(ids) - 1))
    count = len(driver.models.timeline) + len(ids) - 1
    driver.wait_until_idle(lambda: len(driver.models.timeline) == count)


def asks(driver: Driver, send: Callable[[], object]) -> None:
    """Send: the answer begins, as a run that is paused once the conversation is read."""
    before = driver.models.selection.now.seq_id if driver.models.timeline.latest is not None else None
    driver.intents.send(commands.SetPace(0.001, None))  # it does not end before it is seen, however busy the machine
    send()
    status, selection = driver.models.status, driver.models.selection
    driver.until(lambda: selection.now.seq_id != before and driver.has_chosen() and status.now.running)
    driver.window.actions_["run.run"].trigger()
    driver.wait_until_idle(driver.has_chosen)
    driver.shell.set_pace(USUAL_PACE)


def test_a_conversation_from_the_first_turn_to_the_third(driver: Driver) -> None:
    prompt, models = driver.window.prompt, driver.models
    driver.intents.send(commands.SetPace(1e-3, None))  # the run waits with its second step
    driver.intents.on_model_chosen(ModelSpec(talking(THINKING).info.source))
    driver.wait_until_idle(lambda: models.status.now.model is not None and bool(models.status.now.model.templates))
    prompt.choose("chat")
    prompt.chat.new_line.click()
    assert prompt.chat.isVisible()
    assert not prompt.edit.isVisible()
    assert "type what the user says first" in driver.window.actions_.reason("prompt.send")

    # the first turn, rendered while it is written
    write(driver, "hi")
    first = f"{BEGIN}user\nhi{END}\n{BEGIN}assistant\n"
    assert prompt.chat.rendered.toPlainText() == first.replace("\n", "⏎\n")
    shown, pieces = prompt.chat.rendered.toPlainText(), prompt.chat.rendered.pieces
    assert [shown[piece.start : piece.stop] for piece in pieces if piece.is_special] == [BEGIN, END, BEGIN]
    assert prompt.detail.text() == f"{len(ids_of(first))} of 512 tokens"
    QTest.keyClick(prompt.chat.turns.rows[0].edit, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    assert prompt.chat.turns.turns == (Turn("user", "hi\n"),)
    write(driver, "hi")
    asks(driver, lambda: QTest.keyClick(prompt.chat.turns.rows[0].edit, Qt.Key.Key_Return))
    seq_id = models.selection.now.seq_id
    assert [token.token_id for token in models.timeline.tokens(seq_id)] == [*ids_of(first)]
    assert conversation_of(models, seq_id) == Chat((Turn("user", "hi"),))

    # what is being written is in the journal
    assert prompt.chat.draft is None
    write(driver, "hi, you")
    saving = driver.controller.saving
    assert saving.session.draft_chat == Chat((Turn("user", "hi, you"),))
    write(driver, "hi")
    assert saving.session.draft_chat is None

    # its answer becomes the assistant's turn
    says(driver, f"<think>hm</think>yes{END}")
    assert prompt.chat.answer.isVisible()
    assert prompt.chat.answer.edit.toPlainText() == "<think>hm</think>yes", "while it is generated"
    assert prompt.chat.answer.note.text() == f"paused · {len(ids_of(f'<think>hm</think>yes{END}'))} tokens · F5 goes on"
    button(prompt.chat, "Take answer").click()
    driver.until(lambda: len(prompt.chat.turns.turns) == 3)
    assert prompt.chat.turns.turns[1:] == (Turn("assistant", "<think>hm</think>yes"), Turn("user", ""))
    write(driver, "and now?")
    kept, cached = len(ids_of(first)), len(ids_of(f"{first}<think>hm</think>yes"))
    words = f"{kept} of {cached} rows of seq {seq_id} kept. Token {kept} differs: “y” (id {ids_of('y')[0]}) here, “<” "
    assert prompt.chat.words.text().startswith(words)
    assert "Line 12 of the chat template wrote it: {{- '<|im_start|>assistant" in prompt.chat.words.text()

    # in a low panel nothing overlaps, and what is said of the cache is whole: it is scrolled with the turns
    chat = prompt.chat
    chat.shows_rendered.click()
    for height in (236, 400):
        chat.setFixedHeight(height)
        chat.layout().activate()
        parts = (chat.turns, chat.rendered, button(chat, "+ Turn"))
        for upper, lower in pairwise(part.geometry() for part in parts):
            assert upper.bottom() < lower.top(), (height, parts)
        assert chat.words.height() >= chat.words.heightForWidth(chat.words.width())
    chat.shows_rendered.click()
    chat.setMinimumHeight(0)
    chat.setMaximumHeight(16_777_215)  # any

    # the third turn reuses equal rows, in the same history, and the panel of sequences says so
    asks(driver, driver.window.actions_["prompt.send"].trigger)
    child = models.selection.now.seq_id
    part = models.timeline.part(child)
    assert part is not None
    assert part.first_position == kept
    whole = f"{BEGIN}user\nhi{END}\n{BEGIN}assistant\nyes{END}\n{BEGIN}user\nand now?{END}\n{BEGIN}assistant\n"
    assert [token.token_id for token in models.timeline.tokens(child)] == [*ids_of(whole)]
    status = models.status.now
    assert status is not None
    (info,) = status.sequences
    assert isinstance(info.why_not_reused, ContinuedFrom)
    driver.window.sequences.refresh()
    assert driver.window.sequences.read().why.startswith(words)  # type: ignore[union-attr]
    assert [turn.role for turn in conversation_of(models, child).turns] == ["user", "assistant", "user"]  # type: ignore[union-attr]
    notes = [row.note.text() for row in prompt.chat.turns.rows]
    assert notes == ["", "", f"{kept} of {len(ids_of(whole))} tokens reused from the cache"]
    driver.window.tokens.refresh()
    assert ids_of(BEGIN)[0] in driver.window.tokens.canvas.chips.special

    # going back shows the turns of then; a new conversation begins with an empty turn
    driver.intents.send(GoTo(0))
    driver.wait_until_idle(lambda: models.selection.now.seq_id == seq_id or models.history.live == 0)
    models.selection.update(seq_id=seq_id)
    driver.until(lambda: prompt.chat.turns.turns == (Turn("user", "hi"),))
    prompt.chat.new_line.click()
    assert prompt.chat.turns.turns == (Turn("user", ""),)
    assert prompt.chat.after is None

    # a conversation that was left comes back; that of a sequence that is stopped is answered by itself
    prompt.choose("text")
    driver.shell.take_chat(Chat((Turn("user", "hi"),)))
    assert (prompt.choice, prompt.chat.turns.turns) == ("chat", (Turn("user", "hi"),))
    driver.until(lambda: prompt.tokens.ids is not None)
    asks(driver, driver.window.actions_["prompt.send"].trigger)
    says(driver, f"no{END}")
    driver.window.sequences.wants.emit(StopSequence(models.selection.now.seq_id))
    driver.until(lambda: prompt.chat.turns.turns[1:] == (Turn("assistant", "no"), Turn("user", "")))

    # nothing is said about the rows of a removed sequence
    write(driver, "and now?")
    driver.until(lambda: "rows of seq" in prompt.chat.words.text())
    driver.intents.on_model_chosen(ModelSpec(talking(THINKING).info.source))
    driver.wait_until_idle(lambda: models.status.now.model is not None and not len(models.timeline))
    assert not prompt.chat.words.isVisible()
    driver.intents.send(commands.SetPace(None, None))


def test_turns_are_added_taken_out_and_given_to_others(driver: Driver) -> None:
    load(driver, THINKING)
    chat = driver.window.prompt.chat
    write(driver, "hi")
    button(chat, "+ Turn").click()
    assert [turn.role for turn in chat.turns.turns] == ["user", "assistant"]
    chat.system.click()
    assert [turn.role for turn in chat.turns.turns] == ["system", "user", "assistant"]
    assert not chat.system.isVisible()
    chat.turns.rows[2].role.choose("user")
    chat.turns.rows[0].remove.click()
    chat.turns.rows[0].remove.click()
    chat.turns.rows[0].remove.click()
    assert driver.window.actions_.reason("prompt.send") == "add a turn first"
    button(chat, "+ Turn").click()
    write(driver, "hi")
    chat.turns.add(Turn("user", ""))
    write(driver, "<b>no</b>")
    assert chat.turns.turns == (Turn("user", "hi"), Turn("user", "<b>no</b>"))
    assert "<b>no</b>" in chat.rendered.toPlainText()  # as it is


def test_the_conversation_of_the_selected_sequence_is_in_the_editor(driver: Driver) -> None:
    load(driver, THINKING)
    chat, actions, selection = driver.window.prompt.chat, driver.window.actions_, driver.models.selection
    write(driver, "hi")
    asks(driver, actions["prompt.send"].trigger)
    first = selection.now.seq_id
    chat.new_line.click()
    write(driver, "bye")
    actions["prompt.add"].trigger()  # it is read, and not answered
    driver.wait_until_idle(lambda: selection.now.seq_id != first)
    for seq_id, words in ((first, "hi"), (selection.now.seq_id, "bye")):
        selection.update(seq_id=seq_id)
        QApplication.processEvents()
        assert chat.turns.turns[:1] == (Turn("user", words),)


def test_ids_and_texts_are_kept_beside_each_other(driver: Driver) -> None:
    load(driver, THINKING)
    prompt = driver.window.prompt
    prompt.choose("text")
    prompt.edit.set_text("hi")
    driver.until(lambda: prompt.tokens.ids == ids_of("hi"))
    prompt.choose("ids")
    assert prompt.edit.text() == " ".join(map(str, ids_of("hi")))
    assert prompt.draft == "hi"
    prompt.edit.set_text("5 6 7")
    prompt.choose("text")
    assert prompt.edit.text() == "hi"
    prompt.choose("ids")
    driver.window.actions_["prompt.send"].trigger()
    driver.wait_until_idle(driver.has_chosen)
    assert [token.token_id for token in driver.models.timeline.tokens(driver.models.selection.now.seq_id)] == [5, 6, 7]


def test_a_model_without_a_template_says_so_and_offers_ours(driver: Driver) -> None:
    load(driver, None)
    prompt = driver.window.prompt
    write(driver, "hi")
    assert prompt.chat.about.text().startswith("Without a chat template an empty line ends a turn.")
    assert not prompt.chat.words.isVisible()
    assert prompt.chat.rendered.toPlainText() == "hi⏎\n⏎\n"
    choice = prompt.chat.template
    assert [choice.itemText(n) for n in range(choice.count())] == [NONE, PLAIN_NAME, FILE]
    choice.activated.emit(1)
    driver.until(lambda: prompt.chat.rendered.toPlainText() == "User:·hi⏎\nAssistant:")
    assert prompt.chat.about.text().startswith("A line that begins with “User:” ends an answer.")
    prompt.choose("text")


def test_a_conversation_that_is_too_long_says_so_and_is_not_cut(driver: Driver) -> None:
    prompt, width = driver.window.prompt, driver.window.docks.docks["prompt"].width()
    load(driver, None)
    write(driver, "x" * 600)
    words = "602 tokens are more than the 512 that there is room for: take out turns at the beginning, or begin anew"
    driver.until(lambda: prompt.chat.warning.isVisible())
    assert prompt.chat.warning.text() == f"{words}."
    assert words in driver.window.actions_.reason("prompt.send")
    assert not prompt.first.isVisible(), "the first tokens would be sent without the newest turn"
    prompt.chat.new_line.click()
    write(driver, "hi")
    driver.until(lambda: not prompt.chat.warning.isVisible())
    assert driver.window.docks.docks["prompt"].width() == width
    prompt.choose("text")


def test_an_answer_that_is_stopped_is_taken_and_the_next_turn_can_be_written(driver: Driver) -> None:
    load(driver, None)
    prompt, chat = driver.window.prompt, driver.window.prompt.chat
    write(driver, "hi")
    driver.shell.set_pace("5")
    prompt.send.click()
    driver.until(lambda: not chat.answer.isHidden())
    driver.window.actions_["run.cancel"].trigger()
    driver.until(lambda: len(chat.turns.rows) == 3)
    assert (chat.turns.turns[1].role, chat.turns.rows[1].note.text()) == ("assistant", "stopped")
    assert chat.turns.turns[2] == Turn("user", "")

    # run on, the answer grows where it stands, beside what is being written; one that was edited is left alone
    chat.turns.rows[2].edit.set_text("and")
    says(driver, "abc")
    driver.until(lambda: chat.turns.turns[1].text.endswith("abc"))
    driver.until(lambda: "rows of seq" in chat.words.text())
    driver.window.actions_["run.run"].trigger()
    driver.until(lambda: chat.turns.rows[1].note.text().startswith("writing"))
    assert chat.words.isHidden(), "how many rows are kept was told of the answer as it was before"
    driver.window.actions_["run.cancel"].trigger()
    driver.until(lambda: "rows of seq" in chat.words.text())
    driver.until(lambda: chat.turns.rows[1].note.text() == "stopped")
    says(driver, "de")
    driver.until(lambda: chat.turns.turns[1].text.endswith("de"))
    assert [turn.role for turn in chat.turns.turns] == ["user", "assistant", "user"]
    assert (chat.turns.turns[2].text, chat.turns.rows[1].note.text()) == ("and", "stopped")
    chat.turns.rows[1].edit.set_text("mine")
    says(driver, "fg")
    assert chat.turns.turns[1].text == "mine"
    driver.shell.set_pace(USUAL_PACE)
    chat.new_line.click()
    prompt.choose("text")


def test_an_answer_that_ends_by_itself_before_it_is_stopped_is_not_called_stopped(driver: Driver) -> None:
    load(driver, None)
    prompt, chat = driver.window.prompt, driver.window.prompt.chat
    prompt.sampling_button.popup.longest_answer.setValue(4)
    driver.intents.send(commands.SetPace(0.001, None))  # it does not end before it is seen, however busy the machine
    write(driver, "hi")
    prompt.send.click()
    driver.until(lambda: not chat.answer.isHidden() and driver.models.status.now.running)
    chat.stop_answer()  # the engine is not told before the end
    driver.shell.set_pace(USUAL_PACE)
    driver.until(lambda: len(chat.turns.rows) == 3)
    assert chat.turns.rows[1].note.text() == "ended at the longest answer"
    prompt.choose("text")
    prompt.sampling_button.popup.longest_answer.setValue(256)


def test_an_answer_ends_at_the_limit_and_a_text_has_none(driver: Driver) -> None:
    load(driver, None)
    prompt, models = driver.window.prompt, driver.models
    prompt.sampling_button.popup.longest_answer.setValue(3)
    write(driver, "hi")
    assert prompt.chat.about.text().endswith("An answer has at most 3 tokens.")
    prompt.send.click()
    driver.until(lambda: len(prompt.chat.turns.rows) == 3)
    (info,) = models.status.now.sequences  # type: ignore[union-attr]
    assert (info.stop, info.num_tokens - info.num_prompt_tokens) == ("length", 2), (
        "the last is chosen, and not computed"
    )
    assert prompt.chat.turns.rows[1].note.text() == "ended at the longest answer"
    assert prompt.sampling.stop == (), "the empty line that ends a turn is not the user's"
    prompt.choose("text")
    assert prompt.sampling.max_new_tokens is None
    prompt.sampling_button.popup.longest_answer.setValue(256)


def test_a_folder_of_the_same_weights_renders_with_its_own_template(driver: Driver) -> None:
    prompt, models = driver.window.prompt, driver.models
    first, second = talking(THINKING).info, talking(None).info
    assert first.fingerprint == second.fingerprint
    load(driver, THINKING)
    write(driver, "hi")
    driver.until(lambda: BEGIN in prompt.chat.rendered.toPlainText())
    driver.intents.on_model_chosen(ModelSpec(second.source))
    driver.wait_until_idle(
        lambda: models.status.now.model is not None and models.status.now.model.source == second.source
    )
    driver.until(lambda: prompt.chat.rendered.toPlainText() == "hi⏎\n⏎\n")
    prompt.choose("text")


def test_a_folder_whose_template_was_edited_renders_with_the_new_one(driver: Driver, tmp_path: Path) -> None:
    prompt, models = driver.window.prompt, driver.models
    folder = tmp_path / "edited"
    shutil.copytree(Path(talking(THINKING).info.source.removeprefix("shape:")).parent, folder)
    source = f"shape:{folder / 'config.json'}"
    driver.intents.on_model_chosen(ModelSpec(source))
    driver.wait_until_idle(lambda: models.status.now.model is not None and models.status.now.model.source == source)
    before = models.status.now.model
    prompt.choose("chat")
    prompt.chat.new_line.click()
    prompt.chat.template.activated.emit(0)
    write(driver, "hi")
    driver.until(lambda: BEGIN in prompt.chat.rendered.toPlainText())
    (folder / "chat_template.jinja").write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}", "utf-8")
    driver.intents.on_model_chosen(ModelSpec(source))
    driver.until(lambda: prompt.chat.rendered.toPlainText() == "[hi]")
    assert before is not None
    assert models.status.now.model is not None
    assert models.status.now.model.fingerprint == before.fingerprint
    prompt.choose("text")


def test_what_is_shown_of_many_tokens_is_their_beginning_and_end() -> None:
    ids = tuple(range(MAX_SHOWN + 10))
    text, pieces = pieces_of(ids, [f"{n} " for n in ids], {0})
    assert "· … 10 tokens … " in text
    assert (pieces[0].is_special, pieces[1].is_special) == (True, False)
    assert text[pieces[-1].start : pieces[-1].stop] == f"{ids[-1]}·"
    assert pieces_of((7,), ("a\n\nb",), ())[0] == "a⏎\n⏎\nb"


def test_a_rendered_line_is_full_before_the_next_begins(qapp: QApplication) -> None:
    """Spaces are drawn as dots, so that the text is one long word: it must not break inside a special token before
    it."""
    rendered = RenderedText()
    rendered.resize(270, 80)
    rendered.show()
    rendered.show_tokens((0, 1), (BEGIN, "Tell me a tale about a little cat and a dog"), {0}, 0, -1)
    QApplication.processEvents()
    lines = rendered.document().firstBlock().layout()
    assert lines.lineCount() == 2
    assert lines.lineAt(0).textLength() > lines.lineAt(1).textLength()
    rendered.close()
