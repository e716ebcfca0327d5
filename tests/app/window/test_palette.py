"""The palette of actions: ranking by what is typed, keys and clicks, and how it opens."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.actions.dialogs import open_palette
from app.shell import Shell
from app.window.palette import NO_MATCH, Palette, rank
from tests.app.shown import shown
from tests.approve import approve


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", 0),
        ("step", 0),  # the name begins with it
        ("ba", 1),  # a word of it does
        ("run", 1),  # that of its menu as well
        ("tep", 2),
        ("p b", 2),
        ("sbk", 3 + 4 + 2),  # letters in order: each letter that is skipped counts
        ("sb ck", 3 + 5 + 4 + 1),
        ("rb", None),  # not from the menu's title into the name
        ("bb", None),  # there is one, and each letter counts once
        ("kcab", None),
        ("stepper", None),
    ],
)
def test_a_prefix_goes_before_a_word_before_a_part_before_letters(query: str, expected: int | None) -> None:
    assert rank(query, "run: step back") == expected


class Typed:
    """Offers texts that begin with `=`; those that end with `!` are offered as disabled."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def offer(self, text: str) -> tuple[str, str] | None:
        return (f"Do {text}", "not now" if text.endswith("!") else "") if text.startswith("=") else None

    def make(self, text: str) -> None:
        self.made.append(text)


def test_the_list_is_walked_and_done_by_keys_and_by_a_click(shell: Shell, qtbot: QtBot) -> None:
    done: list[str] = []
    shell.actions.triggered.connect(lambda action: done.append(action.name))
    palette = Palette(shell.actions, shell.window)
    palette.open_over(shell.window)
    palette._line.setText("e")  # among many that are grey before there is a model
    can = [row for row in range(len(palette.matches())) if palette._rows.item(row).isEnabled()]
    assert 20 < len(can) < len(palette.matches())
    assert can[:3] != [0, 1, 2], "some in between are grey"
    rows = []
    for key in (Qt.Key.Key_Up, *[Qt.Key.Key_Down] * 4, Qt.Key.Key_Up, Qt.Key.Key_PageDown, *[Qt.Key.Key_PageDown] * 30):
        qtbot.keyClick(palette._line, key)
        rows.append(palette._list.currentIndex().row())
    begin = can.index(max(0, rows[0])) if rows[0] in can else -1
    assert rows[1:6] == [*can[begin + 1 : begin + 5], can[begin + 3]]
    assert rows[6] == next(row for row in can if row >= rows[5] + 10)
    assert rows[-1] == can[-1]
    for _ in range(30):
        qtbot.keyClick(palette._line, Qt.Key.Key_PageUp)
    assert palette._list.currentIndex().row() == can[0]
    palette._line.setText("theme")
    while palette.matches()[palette._list.currentIndex().row()] != "theme.light":
        qtbot.keyClick(palette._line, Qt.Key.Key_Down)
    qtbot.keyClick(palette._line, Qt.Key.Key_Return)
    assert (done, palette.isVisible()) == (["theme.light"], False)
    other = Palette(shell.actions, shell.window)
    other.open_over(shell.window)
    other._line.setText("theme dark")
    other._list.clicked.emit(other._rows.index(0, 0))
    assert done == ["theme.light", "theme.dark"]


def test_a_typed_command_stands_first_and_is_carried_out(shell: Shell, qtbot: QtBot) -> None:
    typed = Typed()
    palette = Palette(shell.actions, shell.window, typed)
    palette.open_over(shell.window)
    palette._line.setText("=x!")
    first = palette._rows.item(0)
    assert (first.text(), first.isEnabled(), palette.matches()) == ("Do =x!", False, ["typed"])
    qtbot.keyClick(palette._line, Qt.Key.Key_Enter)
    assert (typed.made, palette.isVisible()) == ([], True)
    palette._line.setText("=x")
    qtbot.keyClick(palette._line, Qt.Key.Key_Enter)
    assert (typed.made, palette.isVisible()) == (["=x"], False)


def test_a_panel_is_found_by_its_name_and_shown_wherever_it_is(shell: Shell, qtbot: QtBot) -> None:
    window = shell.window
    window.arrange("truth")
    for typed, layout in (("bench", "truth"), ("notes", "inspect"), ("bytes", "inspect"), ("codec", "truth")):
        open_palette(shell)
        palette = window.findChildren(Palette)[-1]
        palette._line.setText(typed)
        found = [palette._rows.item(row).text() for row in range(palette._rows.rowCount())]
        panel = next(text for text in found if text.startswith("Panel: "))
        assert typed in panel.lower()
        palette._list.setCurrentIndex(palette._rows.index(found.index(panel), 0))
        qtbot.keyClick(palette._line, Qt.Key.Key_Return)
        assert window.docks.layout_name == layout, typed
        shown = [dock for dock in window.docks.docks.values() if f"Panel: {dock.windowTitle()}" == panel]
        assert len(shown) == 1
        assert not shown[0].visibleRegion().isEmpty(), typed


def test_with_no_match_the_palette_says_so_and_enter_does_nothing(shell: Shell, qtbot: QtBot) -> None:
    palette = Palette(shell.actions, shell.window)
    palette.open_over(shell.window)
    palette._line.setText("qqqq")
    assert [palette._rows.item(row).text() for row in range(palette._rows.rowCount())] == [NO_MATCH]
    qtbot.keyClick(palette._line, Qt.Key.Key_Enter)
    palette._list.clicked.emit(palette._rows.index(0, 0))
    assert palette.isVisible()


def test_it_opens_over_the_middle_of_its_window_with_the_keys(shell: Shell) -> None:
    palette = Palette(shell.actions, shell.window)
    palette.open_over(shell.window)
    QApplication.processEvents()
    window = shell.window.mapToGlobal(shell.window.rect().center())
    assert abs(palette.geometry().center().x() - window.x()) <= 4
    below = palette.y() - shell.window.mapToGlobal(shell.window.rect().topLeft()).y()
    assert abs(below - 64) <= 4
    assert palette._line.hasFocus()
    palette._line.setText("run")
    QApplication.processEvents()
    approve(Path(__file__).parent / "approved" / "palette.txt", shown(palette))
