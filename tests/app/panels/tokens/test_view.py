"""The token panel in the window: choosing, finding, and text that stays text."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QListView, QWidget
from pytestqt.qtbot import QtBot

from app.draw.format import token_label
from app.shell import Shell
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine


def test_clicking_a_chip_selects_its_position(running: Shell, qtbot: QtBot) -> None:
    strip = running.window.tokens.strip
    point = strip.token_rect(7).center()
    assert strip.index_at(point) == 7
    qtbot.mouseClick(strip.viewport(), Qt.MouseButton.LeftButton, pos=point)
    assert running.models.selection.now.position == 7
    qtbot.mouseClick(strip.viewport(), Qt.MouseButton.LeftButton, pos=point)
    assert running.models.selection.now.position is None


def test_find_goes_round(running: Shell, qtbot: QtBot) -> None:
    running.window.tokens.open_find()
    line = running.window.tokens._find
    line.setText("She LO")
    qtbot.keyClick(line, Qt.Key.Key_Return)
    first = running.models.selection.now.position
    tokens = running.models.timeline.tokens(0)
    assert tokens[first].text == " She"
    qtbot.keyClick(line, Qt.Key.Key_Return)
    assert running.models.selection.now.position == first
    line.setText("nothing like it")
    qtbot.keyClick(line, Qt.Key.Key_Return)
    assert "not in the tokens" in running.window.status._note.text()
    qtbot.keyClick(line, Qt.Key.Key_Escape)
    assert not line.isVisible()


def test_many_tokens_stay_fast(shell: Shell, engine: FakeEngine) -> None:
    """Painting what is visible of forty thousand tokens costs about what it costs for four hundred."""
    engine.loaded()

    def cost(num_prompt: int) -> float:
        shell.models.timeline.clear()
        shell.models.timeline.append([samples.step_record(0, num_prompt)])
        turn(shell)
        strip = shell.window.tokens.strip
        began = time.perf_counter()
        for step in range(1, 6):
            shell.models.timeline.append([samples.step_record(step, num_prompt)])
            strip.viewport().repaint()
        return time.perf_counter() - began

    few, many = min(cost(400) for _ in range(3)), min(cost(40_000) for _ in range(3))
    assert many < 12 * few


HOSTILE = (
    "<b>x</b>", "<img src=x>", "&amp;", "\x00", "\ud800", "\u202e", "\u200b", "\x1b[31m", "%s{0}", "\n\r\t", "é\ufffd",
    "<b>\u202e\x00&lt;</b>\ud800", "",
)  # fmt: skip
ACTIVE = set("\x00\ud800\u202e\u200b\x1b\r")


def said(widget: QWidget) -> list[str]:
    """All that a widget shows or tells, itself and to a screen reader; what Qt would read as markup is told by name."""
    words = [widget.accessibleName(), widget.accessibleDescription()]
    if isinstance(widget, QLabel):
        is_plain = widget.textFormat() == Qt.TextFormat.PlainText or "<" not in widget.text()
        words.append(widget.text() if is_plain else f"markup \x00 {widget.text()}")
    return words


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_token_texts_are_inert_everywhere(running: Shell, text: str) -> None:
    record = samples.step_record(20)
    part = record.sequences[0]
    part = replace(part, texts=(text,), sampled_text=text)
    part = replace(part, candidates=tuple(replace(one, text=text) for one in part.candidates))
    running.models.timeline.rewind(19)
    running.models.timeline.append([replace(record, sequences=(part,))])
    running.models.selection.update(position=23, step=None)
    turn(running)
    running.window.grab()
    window = running.window
    told = [words for widget in window.findChildren(QWidget) for words in said(widget)]
    told.append(window.tokens.strip._tip(running.models.timeline.tokens(0)[-1]))
    choices = window.next_token.findChild(QListView).model()
    told += [str(choices.index(row, 0).data()) for row in range(choices.rowCount())]
    assert not [words for words in told if ACTIVE & set(words)]
    assert token_label(text, 40) in told, "the inspector shows it whole"
    assert str(choices.index(0, 0).data()).startswith(token_label(text)[:11])
