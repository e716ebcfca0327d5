"""The palette of actions: ranking by what is typed, keys and clicks, and how it opens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QLineEdit, QWidget
from pytestqt.qtbot import QtBot

from app.actions.finding import action_entries, entries, typed_edit, typed_place, typed_value
from app.actions.menus import open_palette
from app.kit.panel_rows import PANELS
from app.panels.prompt.sampling import SamplingButton
from app.shell import Shell
from app.window.palette import NO_MATCH, TYPED, Entry, Palette, found, rank
from engine.spec.cache import cache_preset
from engine.wire.commands import SetCache, Step
from engine.wire.events import StateChanged
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.shown import shown
from tests.approve import approve


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", 0),
        ("step back", 0),  # its name
        ("run step back", 0),
        ("run: step-back", 0),
        ("rewind", 0),  # another word for it
        ("step", 1),  # the name begins with it
        ("rew", 2),  # another word does
        ("ba", 3),  # a word of the name does
        ("run", 3),  # that of its menu as well
        ("tep", 4),
        ("p b", 4),
        ("how do i step back", 0),
        ("back step", 5),  # every word begins one of these
        ("earlier", 6),  # or one of the sentence
        ("step earlier", 6),
        ("er", None),  # which two letters are too few for
        ("sbk", 7 + 4 + 2),  # letters in order: each letter that is skipped counts
        ("sb ck", 7 + 5 + 4),
        ("rb", None),  # not from the menu's title into the name
        ("bb", None),  # there is one, and each letter counts once
        ("kcab", None),
        ("stepper", None),
    ],
)
def test_names_go_before_other_words_before_sentences_before_letters(query: str, expected: int | None) -> None:
    assert rank(query, "Run: Step back", "rewind, previous step", "Show an earlier one") == expected


def test_the_list_is_walked_and_done_by_keys_and_by_a_click(shell: Shell, qtbot: QtBot) -> None:
    done: list[str] = []
    shell.actions.triggered.connect(lambda action: done.append(action.name))
    palette = Palette([*action_entries(shell.actions)], shell.window)
    palette.open_over(shell.window)
    palette.line.setText("e")  # among many that are grey before there is a model
    can = [row for row in range(len(palette.matches())) if palette.rows.item(row).isEnabled()]
    assert 20 < len(can) < len(palette.matches())
    assert can[:3] != [0, 1, 2], "some in between are grey"
    rows = []
    for key in (Qt.Key.Key_Up, *[Qt.Key.Key_Down] * 4, Qt.Key.Key_Up, Qt.Key.Key_PageDown, *[Qt.Key.Key_PageDown] * 30):
        qtbot.keyClick(palette.line, key)
        rows.append(palette.list.currentIndex().row())
    begin = can.index(max(0, rows[0])) if rows[0] in can else -1
    assert rows[1:6] == [*can[begin + 1 : begin + 5], can[begin + 3]]
    assert rows[6] == next(row for row in can if row >= rows[5] + 10)
    assert rows[-1] == can[-1]
    for _ in range(30):
        qtbot.keyClick(palette.line, Qt.Key.Key_PageUp)
    assert palette.list.currentIndex().row() == can[0]
    palette.line.setText("theme")
    while palette.matches()[palette.list.currentIndex().row()] != "theme.light":
        qtbot.keyClick(palette.line, Qt.Key.Key_Down)
    qtbot.keyClick(palette.line, Qt.Key.Key_Return)
    assert (done, palette.isVisible()) == (["theme.light"], False)
    other = Palette([*action_entries(shell.actions)], shell.window)
    other.open_over(shell.window)
    other.line.setText("theme dark")
    other.list.clicked.emit(other.rows.index(0, 0))
    assert done == ["theme.light", "theme.dark"]


def test_a_typed_command_stands_first_and_is_carried_out(shell: Shell, qtbot: QtBot) -> None:
    made: list[str] = []

    def typed(text: str) -> Entry | None:
        """Texts that begin with `=`; those that end with `!` are offered as disabled."""
        why_not = "not now" if text.endswith("!") else ""
        do = partial(made.append, text)
        return Entry(TYPED, f"Do {text}", do, why_not=why_not) if text.startswith("=") else None

    palette = Palette((), shell.window, (typed,))
    palette.open_over(shell.window)
    palette.line.setText("=x!")
    first = palette.rows.item(0)
    assert (first.text(), first.isEnabled(), palette.matches()) == ("Do =x!", False, ["typed"])
    qtbot.keyClick(palette.line, Qt.Key.Key_Enter)
    assert (made, palette.isVisible()) == ([], True)
    palette.line.setText("=x")
    qtbot.keyClick(palette.line, Qt.Key.Key_Enter)
    assert (made, palette.isVisible()) == (["=x"], False)


def test_a_panel_is_found_by_its_name_and_shown_wherever_it_is(shell: Shell, qtbot: QtBot) -> None:
    window = shell.window
    window.arrange("truth")
    for typed, layout in (("bench", "truth"), ("notes", "inspect"), ("bytes", "inspect"), ("codec", "truth")):
        open_palette(shell)
        palette = window.findChildren(Palette)[-1]
        palette.line.setText(typed)
        found = [palette.rows.item(row).text() for row in range(palette.rows.rowCount())]
        panel = next(text for text in found if text.startswith("Panel: "))
        assert typed in panel.lower()
        palette.list.setCurrentIndex(palette.rows.index(found.index(panel), 0))
        qtbot.keyClick(palette.line, Qt.Key.Key_Return)
        assert window.docks.layout_name == layout, typed
        shown = [dock for dock in window.docks.docks.values() if f"Panel: {dock.windowTitle()}" == panel]
        assert len(shown) == 1
        assert not shown[0].visibleRegion().isEmpty(), typed


# What people type, and what they mean by it.
MEANT = {
    "attention": "Panel: Attention",
    "outlier": "View: Largest values…",
    "breakpoint": "Breakpoints: Add breakpoint…",
    "temperature": "Sampling: Temperature",
    "top-k": "Sampling: Top-k",
    "quantize": "Cache: FP8",
    "recent": "Recent files",
    "perplexity": "Cache: Measure every cache mode",
    "go to": "View: Go to…",
    "hatched": "Panel: Why evicted",
    "budget": "Glossary: Budget",  # then the parameter, with the modes that have one
    "page size": "Cache parameter: Page size",
    "residual": "Cache parameter: Latest rows exact",
    "theme": "Theme: As the desktop",
    "dark mode": "Theme: As the desktop",
    "shortcuts": "Help: Keys",
    "benchmark": "Cache: Measure the speed of cache modes",
    "logits": "Panel: Next token",
    "memory": "Panel: Bytes",
    "tutorial": "Help: The first five minutes",
    "chat": "Prompt: Chat",
    "token ids": "Prompt: Ids",
    "prefill": "Run: Send prompt",
    "codec": "Panel: Codec damage",
    "panel: what-if": "Panel: What if",
    "lens: attention of the newest": "Lens: Attention of the newest token",
    "what is an attention sink": "Glossary: Attention sink",
}


def test_everything_is_found_under_the_names_that_people_use(running: Shell) -> None:
    offered = entries(running)
    first = {typed: next(entry.name for entry in found(typed, offered)) for typed in MEANT}
    assert first == MEANT
    quantised = [entry.name for entry in found("quantize", offered)][:6]
    assert all(name.startswith("Cache: ") for name in quantised), "every mode that quantises, before all else"
    for row in PANELS.values():
        assert f"Panel: {row.title}" in [entry.name for entry in found(row.title, offered)[:2]]


def test_what_is_possible_comes_before_what_matches_as_well_and_is_not() -> None:
    offered = [Entry("a", "Recent files", print, why_not="none yet"), Entry("b", "Recent session", print)]
    assert [entry.key for entry in found("recent", offered)] == ["b", "a"]
    assert next(entry.key for entry in found("recent files", offered)) == "a", "the better match stays first"


def test_a_panel_that_is_found_says_what_it_shows_and_a_prompt_is_written_as_asked(shell: Shell) -> None:
    """Otherwise nothing would seem to happen where the panel is in sight already."""
    done = {entry.name: entry.do for entry in entries(shell)}
    done["Panel: Attention"]()
    assert shell.models.status.notice == PANELS["attention"].says
    for mode in ("chat", "ids", "text"):
        done[f"Prompt: {mode.capitalize()}"]()
        assert shell.window.prompt.choice == mode


def test_every_panel_has_a_row_of_words(shell: Shell) -> None:
    shell.window.need_all()
    assert {name: row.title for name, row in PANELS.items()} == {
        name: panel.accessibleName() for name, panel in shell.window.panels.items()
    }


@pytest.mark.parametrize(
    ("typed", "words", "selected"),
    [
        ("K[2,1,7,13]", "Go to K of layer 2, kv head 1, token 7, channel 13", (2, 1, 7, 13, "keys")),
        ("v[3, 0]", "Go to V of layer 3, kv head 0", (3, 0, None, None, "values")),
        ("token 7", "Go to token 7", (0, 0, 7, None, "keys")),
        ("layer 5 head 2", "Go to layer 5, kv head 2", (5, 2, None, None, "keys")),
    ],
)
def test_a_typed_place_is_gone_to(
    running: Shell, qtbot: QtBot, typed: str, words: str, selected: tuple[object, ...]
) -> None:
    open_palette(running)
    palette = running.window.findChildren(Palette)[-1]
    palette.line.setText(typed)
    assert palette.rows.item(0).text() == words
    qtbot.keyClick(palette.line, Qt.Key.Key_Return)
    now = running.models.selection.now
    assert (now.layer, now.kv_head, now.position, now.channel, now.lens) == selected


def test_a_typed_step_is_shown_and_a_place_that_is_not_there_says_what_is(running: Shell) -> None:
    place = partial(typed_place, running)
    entry = place("step 4")
    assert entry is not None
    entry.do()
    assert running.models.selection.now.step == 4
    said = {text: place(text) for text in ("layer 99", "K[0,99]", "token 999", "K[0,0,0,999]", "step 999")}
    assert [entry and entry.name for entry in said.values()] == [
        f"There is no layer 99: they are 0 to {samples.LAYERS - 1}.",
        "Layer 0 has no kv head 99: they are 0 to 3.",
        f"There is no token 999: they are 0 to {running.models.timeline.num_tokens(0, 4) - 1}.",
        "A row has no channel 999: they are 0 to 31.",
        "There is no step 999: they are 0 to 20.",
    ]
    assert all(place(text) is None for text in ("", "layer", "K", "K[]", "K[a]", "step back", "K[1,2,3,4,5]"))


def open_sampling(shell: Shell) -> QWidget:
    button = shell.window.prompt.findChild(SamplingButton)
    button.open_at("top_k")
    return button.popup


def open_the_palette(shell: Shell) -> QWidget:
    open_palette(shell)
    return shell.window.findChildren(Palette)[-1]


@pytest.mark.parametrize("opened", [open_sampling, open_the_palette])
def test_a_key_of_the_window_acts_while_something_small_is_open_above_it(
    running: Shell, engine: FakeEngine, qtbot: QtBot, opened: Callable[[Shell], QWidget]
) -> None:
    for key, modifier, sent in (
        (Qt.Key.Key_F10, Qt.KeyboardModifier.NoModifier, True),
        (Qt.Key.Key_Escape, Qt.KeyboardModifier.NoModifier, False),
    ):
        popup, before = opened(running), len(engine.of(Step))
        qtbot.keyClick(popup.findChild(QLineEdit), key, modifier)
        turn(running)
        assert QApplication.activePopupWidget() is None
        assert len(engine.of(Step)) == before + sent
    popup = opened(running)
    qtbot.keyClick(popup.findChild(QLineEdit), Qt.Key.Key_F10, Qt.KeyboardModifier.ShiftModifier)
    turn(running)
    assert running.models.selection.now.step is not None


def test_why_what_was_typed_is_not_possible_is_told_to_its_end(running: Shell) -> None:
    """A name takes one line, and a sentence as many as it needs."""
    palette = Palette((), running.window, (partial(typed_edit, running),))
    heights = []
    for text in ("zero pos=1:3", "zero pos=900000:950000"):
        palette.line.setText(text)
        heights.append(palette.list.sizeHintForRow(0))
    assert heights[1] > heights[0]
    palette.close()


def test_a_typed_value_is_set(running: Shell, engine: FakeEngine) -> None:
    def offered(text: str) -> tuple[str, str] | None:
        entry = typed_value(running, text)
        return None if entry is None else (entry.name, entry.why_not)

    def do(text: str) -> None:
        entry = typed_value(running, text)
        assert entry is not None
        entry.do()

    assert offered("temperature 0.8") == ("Set temperature to 0.8", "")
    do("temperature 0.8")
    turn(running)
    assert running.window.prompt.sampling.temperature == 0.8
    assert offered("temperature 9") == ("Temperature is a number from 0 to 5, not 9.", "Set")
    offer = offered("budget 64")
    assert offer is not None
    assert offer[0].startswith("The Growing cache has no budget: choose H2O, ")
    engine.status = replace(engine.status, cache=cache_preset("h2o").spec)
    engine.emit(StateChanged(engine.status))
    turn(running)
    assert offered("budget 64") == ("Set budget to 64", "")
    do("budget 64")
    turn(running)
    assert [command.cache.retention.budget for command in engine.of(SetCache)] == [64]
    assert offered("budget of 64") is None
    wrong = offered("budget 0.5")
    assert wrong == ("Rows kept per head: give a whole number.", "Set")


def test_with_no_match_the_palette_says_so_and_enter_does_nothing(shell: Shell, qtbot: QtBot) -> None:
    palette = Palette([*action_entries(shell.actions)], shell.window)
    palette.open_over(shell.window)
    palette.line.setText("qqqq")
    assert [palette.rows.item(row).text() for row in range(palette.rows.rowCount())] == [NO_MATCH]
    qtbot.keyClick(palette.line, Qt.Key.Key_Enter)
    palette.list.clicked.emit(palette.rows.index(0, 0))
    assert palette.isVisible()


def test_it_opens_over_the_middle_of_its_window_with_the_keys(shell: Shell) -> None:
    palette = Palette([*action_entries(shell.actions)], shell.window)
    palette.open_over(shell.window)
    QApplication.processEvents()
    window = shell.window.mapToGlobal(shell.window.rect().center())
    assert abs(palette.geometry().center().x() - window.x()) <= 4
    below = palette.y() - shell.window.mapToGlobal(shell.window.rect().topLeft()).y()
    assert abs(below - 64) <= 4
    assert palette.line.hasFocus()
    palette.line.setText("run to")
    QApplication.processEvents()
    approve(Path(__file__).parent / "approved" / "palette.txt", shown(palette))
