"""The token panel in the window: choosing, finding, and text that stays text."""

from __future__ import annotations

import math
from itertools import count

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QEvent, QObject, QRect, Qt
from PySide6.QtGui import QPaintEvent, QRegion
from PySide6.QtWidgets import QLabel, QWidget
from pytestqt.qtbot import QtBot

from app.draw.format import percent, token_label
from app.shell import Shell
from engine.wire.events import PromptSurprisal
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.painted import shapes


def test_clicking_a_chip_selects_its_position(running: Shell, qtbot: QtBot) -> None:
    strip = running.window.tokens.canvas
    point = strip.token_rect(7).center()
    assert strip.index_at(point) == 7
    qtbot.mouseClick(strip.viewport(), Qt.MouseButton.LeftButton, pos=point)
    assert running.models.selection.now.position == 7
    qtbot.mouseClick(strip.viewport(), Qt.MouseButton.LeftButton, pos=point)
    assert running.models.selection.now.position is None


@pytest.mark.parametrize(("entropy", "pending"), [(1.5, " cat"), (None, " cat"), (math.nan, None)])
def test_a_token_that_no_numbers_have_chosen_is_not_shown_as_the_next(
    running: Shell, entropy: float | None, pending: str | None
) -> None:
    record = samples.step_record(running.models.timeline.latest.step + 1)  # type: ignore[union-attr]
    part = replace(record.sequences[0], sampled=5, sampled_text=" cat", entropy=entropy)
    running.models.timeline.append([replace(record, sequences=(part,))])
    running.models.timeline.announce()
    turn(running)
    assert running.window.tokens.canvas.chips.pending == pending


def test_find_goes_round(running: Shell, qtbot: QtBot) -> None:
    running.window.tokens.open_find()
    line = running.window.tokens.find_line
    line.setText("She LO")
    qtbot.keyClick(line, Qt.Key.Key_Return)
    first = running.models.selection.now.position
    tokens = running.models.timeline.tokens(0)
    assert tokens[first].text == " She"
    qtbot.keyClick(line, Qt.Key.Key_Return)
    assert running.models.selection.now.position == first
    line.setText("nothing like it")
    qtbot.keyClick(line, Qt.Key.Key_Return)
    assert "not in the tokens" in running.window.status.note.text()
    qtbot.keyClick(line, Qt.Key.Key_Escape)
    assert not line.isVisible()


class Repainted(QObject):
    """What of a widget is painted from now on."""

    def __init__(self, widget: QWidget) -> None:
        super().__init__(widget)
        self._region = QRegion()
        widget.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QPaintEvent):
            self._region += event.region()
        return False

    def meets(self, place: QRect) -> bool:
        return self._region.intersects(place)


@pytest.mark.parametrize("num_tokens", [400, 40_000])
def test_only_what_is_visible_is_painted_and_a_step_paints_its_end(
    shell: Shell, engine: FakeEngine, num_tokens: int
) -> None:
    engine.loaded()
    shell.models.timeline.append([samples.step_record(0, num_tokens)])
    turn(shell)
    strip = shell.window.tokens.canvas
    texts = [shape for shape in shapes(strip.viewport()) if shape.style.startswith("text")]
    assert 30 < len(texts) < 400
    assert strip.viewport().rect().contains(strip.token_rect(num_tokens - 1))
    painted = Repainted(strip.viewport())
    shell.models.timeline.append([samples.step_record(1, num_tokens)])
    turn(shell)
    visible = range(num_tokens - 400, num_tokens + 1)
    assert {index for index in visible if painted.meets(strip.token_rect(index))} <= {*visible[-21:]}


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


def test_token_texts_are_inert_everywhere(running: Shell) -> None:
    """One after the other in one window; an ordinary text between them, so that each is painted anew."""
    record, window, numbers = samples.step_record(20), running.window, count(20)

    def put(text: str) -> None:
        part = replace(record.sequences[0], texts=(text,), sampled_text=text)
        part = replace(part, candidates=tuple(replace(one, text=text) for one in part.candidates))
        running.models.timeline.go_to(19)
        running.models.timeline.append([replace(record, sequences=(part,), step=next(numbers), parent=19)])
        running.models.selection.update(position=23, step=None)
        turn(running)

    def shown() -> list[str]:
        window.grab()
        told = [words for widget in window.findChildren(QWidget) for words in said(widget)]
        told.append(window.tokens.canvas.chips.words(running.models.timeline.tokens(0)[-1]))
        return told

    for text in HOSTILE:
        put("ordinary")
        assert token_label(text, 40) not in shown(), ascii(text)
        put(text)
        told = shown()
        assert not [words for words in told if ACTIVE & set(words)], ascii(text)
        assert token_label(text, 40) in told, f"the inspector shows {text!a} whole"
        names = [each.name for each in window.next_token.candidates.table.rows]
        assert token_label(text)[:11] in names[0], ascii(text)


def test_tokens_of_a_long_prompt_say_that_their_surprisal_is_to_come_until_it_does(
    shell: Shell, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token 0 has none anyhow, token 3 begins a chunk; of the others the prompt was too long."""
    engine.loaded()
    record = samples.step_record(0, 6)
    part = replace(record.sequences[0], surprisal=(None, None, None, 1.5, None, None))
    shell.models.timeline.append([replace(record, sequences=(part,)), samples.step_record(1, 6)])
    turn(shell)
    why = "not computed yet: comes when the engine rests"
    panel, tokens = shell.window.tokens, shell.models.timeline.tokens(0)
    assert [token.no_surprisal for token in tokens] == ["nothing predicted it", why, why, "", why, why, ""]
    assert panel.detail.text() == "surprisal: comes when the engine rests"
    assert f"\nsurprisal: {why}" in panel.canvas.chips.words(tokens[4])
    for position, expected in ((0, "nothing predicted it"), (4, why)):
        shell.models.selection.update(position=position)
        turn(shell)
        inspector = shell.window.panels["inspector"]
        assert [fact.text for fact in inspector.state.facts if fact.label == "surprisal"] == [expected]  # type: ignore[attr-defined]
    painted = Repainted(panel.canvas.viewport())
    engine.emit(PromptSurprisal(0, 0, 1, (6.5, 2.5)), PromptSurprisal(0, 0, 4, (0.25, 7.5)))
    turn(shell)
    assert all(painted.meets(panel.canvas.token_rect(index)) for index in (1, 2, 4, 5))
    assert [token.surprisal for token in shell.models.timeline.tokens(0)][:6] == [None, 6.5, 2.5, 1.5, 0.25, 7.5]
    assert panel.detail.text() == "surprisal"
    facts = shell.window.panels["inspector"].state.facts  # type: ignore[attr-defined]
    assert [fact.text for fact in facts if fact.label == "surprisal"] == [f"0.25 nats  (p {percent(0.7788)})"]


def test_a_tip_says_what_the_marks_of_a_token_mean(running: Shell) -> None:
    strip = running.window.tokens.canvas
    first, start, later = (strip.chips.tokens[at] for at in (0, samples.PROMPT, samples.PROMPT + 1))
    assert first.token_id not in strip.chips.special
    strip.show_chips(replace(strip.chips, special=frozenset({first.token_id})))
    framed, bar = "framed: a special token of the model, no text", "bar before it: the first token after the prompt"
    assert [mark in strip.chips.words(first) for mark in (framed, bar)] == [True, False]
    assert [mark in strip.chips.words(start) for mark in (framed, bar)] == [False, True]
    assert [mark in strip.chips.words(later) for mark in (framed, bar)] == [False, False]
