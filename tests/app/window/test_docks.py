"""The grid of panels: layouts, gaps, and which arrangement is saved."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path

import pytest
from msgspec.structs import replace
from PySide6.QtWidgets import QApplication, QMenu
from pytestqt.exceptions import capture_exceptions
from shiboken6 import delete

from app.panels.prompt.view import CHAT_HEIGHT
from app.shell import Shell
from app.start.settings import Settings
from app.window.docks import GRIDS, LEAST_TOKENS
from engine.spec.cache import cache_preset
from engine.wire.events import StateChanged
from tests.app import samples
from tests.app.conftest import sweep, turn
from tests.app.fake_engine import FakeEngine
from tests.approve import approve


def test_an_unknown_layout_is_replaced_by_the_usual_one(shell: Shell) -> None:
    shell.window.arrange("learn")
    shell.window.arrange("play")
    assert shell.window.docks.layout_name == "inspect"
    assert "layout.play" not in set(shell.window.actions_.names())


def test_a_layout_may_be_asked_for_while_the_window_has_yet_to_give_the_panels_another_height(shell: Shell) -> None:
    turn(shell)
    for layout in GRIDS:  # Qt would warn of panels that are in no place yet
        shell.window.phases.setVisible(layout != "inspect")
        shell.window.recovery.setVisible(not shell.window.recovery.isVisible())
        shell.window.arrange(layout)
    turn(shell)


def test_a_wide_window_gives_pages_and_the_newest_row_a_column_of_their_own(shell: Shell) -> None:
    def left(name: str) -> int:
        return shell.window.docks.docks[name].geometry().left()

    shell.window.docks.show_pages(True)
    shell.window.arrange("inspect")
    shell.window.resize(1600, 1000)
    turn(shell)
    assert left("attention") == left("prompt")
    assert left("pages") == left("timings") or left("timings") < 0, "in front of the times"
    shell.window.resize(2560, 1440)
    turn(shell)
    assert left("wall") < left("attention") < left("inspector")
    assert left("pages") == left("attention")
    shell.window.resize(1600, 1000)
    turn(shell)
    assert left("attention") == left("prompt")


def test_pages_have_a_place_while_the_cache_has_pages_and_leave_an_arrangement_by_hand_alone(
    shell: Shell, engine: FakeEngine
) -> None:
    docks = shell.window.docks.docks

    def seen() -> list[str]:
        turn(shell)
        return [n for n in ("pages", "timings") if docks[n].isVisible() and docks[n].geometry().right() >= 0]

    def choose(mode: str) -> None:
        engine.emit(StateChanged(replace(samples.status(1), cache=cache_preset(mode).spec)))
        turn(shell)

    engine.loaded()
    choose("growing")
    assert seen() == ["timings"]
    choose("paged")
    assert seen() == ["pages"]
    choose("growing")
    assert seen() == ["timings"]
    shell.window.show_panel("pages")
    assert seen() == ["pages"], "it is shown where somebody asks for it"
    choose("paged")
    choose("growing")
    docks["timings"].setFloating(True)
    docks["timings"].setFloating(False)
    by_hand = seen()
    choose("paged")
    assert seen() == by_hand


def test_pages_that_come_and_go_leave_their_neighbours_the_room_they_had(running: Shell, engine: FakeEngine) -> None:
    docks = running.window.docks.docks
    running.window.resize(1280, 764)
    widths = []
    for mode in ("growing", "paged", "growing"):
        engine.emit(StateChanged(replace(engine.status, cache=cache_preset(mode).spec)))
        turn(running)
        widths.append([docks[name].width() for name in ("attention", "bytes")])
    assert widths == [widths[0]] * 3


@pytest.mark.parametrize(
    ("layout", "size", "above", "below"),
    [("inspect", (980, 700), "timings", "wall"), ("truth", (1090, 760), "damage", "what_if")],
)
def test_in_a_small_window_panels_stand_behind_tabs(
    shell: Shell, layout: str, size: tuple[int, int], above: str, below: str
) -> None:
    def are_tabbed() -> bool:
        docks = shell.window.docks
        others = {dock.objectName() for dock in docks.tabifiedDockWidgets(docks.docks[above])}
        return below in others

    shell.window.arrange(layout)
    for is_small in (False, True, False):
        shell.window.resize(*(size if is_small else (1280, 800)))
        turn(shell)
        assert are_tabbed() == is_small


def test_the_truth_layout_shows_evictions_first_where_the_cache_drops_rows(shell: Shell, engine: FakeEngine) -> None:
    def in_front() -> list[str]:
        docks = shell.window.docks.docks  # one behind a tab waits outside
        return [name for name in ("sweep", "evicted") if docks[name].geometry().right() >= 0]

    engine.loaded()
    turn(shell)
    shell.window.arrange("truth")
    turn(shell)
    assert in_front() == ["sweep"]
    engine.emit(StateChanged(replace(samples.status(1), cache=cache_preset("h2o").spec)))
    turn(shell)
    shell.window.arrange("truth")
    turn(shell)
    assert in_front() == ["evicted"]


def test_panels_never_overlap_and_gaps_are_even(shell: Shell) -> None:
    for size, layout in product(((1280, 800), (1600, 1000), (3840, 2160)), ("learn", "inspect")):
        shell.window.resize(*size)
        shell.window.docks.arrange(layout)
        turn(shell)
        assert (shell.window.width(), shell.window.height()) == size
        frames = [dock.geometry() for dock in shell.window.docks.docks.values() if dock.isVisible()]
        frames = [frame for frame in frames if frame.right() >= 0]  # one behind a tab waits outside
        for index, one in enumerate(frames):
            assert one.width() >= 200, (size, layout)
            assert one.height() >= 90, (size, layout)
            for other in frames[index + 1 :]:
                assert not one.intersects(other), (size, layout)
                assert not one.adjusted(-4, -4, 4, 4).intersects(other), f"gaps are six pixels wide {size} {layout}"
        assert min(frame.left() for frame in frames) == 6, (size, layout)
        assert max(frame.right() for frame in frames) == shell.window.docks.width() - 7, (size, layout)


def test_panels_do_not_overlap_in_the_narrowest_window(running: Shell) -> None:
    running.window.resize(running.window.minimumWidth(), 1040)
    for _ in range(2):  # what a narrow panel leaves out gives its room back at the second one
        turn(running)
        QApplication.processEvents()
    docks = [dock for dock in running.window.docks.docks.values() if dock.isVisible() and dock.geometry().right() >= 0]
    # the sample of Head has a longer title than models have
    frames = {dock.panel.title: dock.geometry() for dock in docks if dock.panel.name != "head"}
    overlapping = [pair for pair in combinations(frames, 2) if frames[pair[0]].intersects(frames[pair[1]])]
    assert not overlapping


def test_the_side_columns_stay_narrow_on_a_small_screen(shell: Shell) -> None:
    shell.window.resize(1280, 800)
    turn(shell)
    assert shell.window.docks.docks["prompt"].width() <= 262
    assert shell.window.docks.docks["wall"].width() >= 700


def test_an_arrangement_is_remembered(shell: Shell) -> None:
    docks = shell.window.docks
    assert docks.save() == b""
    docks.docks["bytes"].setFloating(True)
    docks.docks["bytes"].setFloating(False)
    docks.docks["timings"].hide()
    state = docks.save()
    docks.arrange("inspect")
    assert docks.docks["timings"].isVisible()
    docks.restore(state)
    assert not docks.docks["timings"].isVisible()
    docks.restore(b"nonsense")
    assert not docks.docks["timings"].isVisible()


def test_a_saved_arrangement_brings_back_panels_that_are_built_late(
    shell: Shell, qapp: QApplication, engine: FakeEngine
) -> None:
    shell.window.arrange("compare")
    shell.window.docks.docks["bytes"].topLevelChanged.emit(False)
    geometry, docks = shell.window.save_state()
    again = Shell(qapp, Settings(theme="dark", geometry=geometry, docks=docks), engine.send, engine.drain)
    assert "compare" in again.window.panels
    assert "what_if" not in again.window.panels
    again.window.need_all()
    assert "what_if" in again.window.panels
    sweep(again)


def test_panels_of_layouts_that_were_left_stay_away_when_an_arrangement_comes_back(
    shell: Shell, qapp: QApplication, engine: FakeEngine
) -> None:
    for layout in ("truth", "compare", "inspect"):
        shell.window.arrange(layout)
        turn(shell)
    shell.window.docks.docks["bytes"].topLevelChanged.emit(False)
    geometry, docks = shell.window.save_state()
    again = Shell(qapp, Settings(theme="dark", geometry=geometry, docks=docks), engine.send, engine.drain)
    again.window.show()
    turn(again)
    shown, before = (
        {name for name, dock in each.window.docks.docks.items() if not dock.isHidden()} for each in (again, shell)
    )
    assert {"sweep", "compare"} <= {*again.window.panels}
    assert shown == before
    sweep(again)


def test_another_layout_leaves_the_focus_where_it_was(shell: Shell) -> None:
    window = shell.window
    window.activateWindow()
    window.prompt.edit.setFocus()
    for layout in ("learn", "truth", "compare", "inspect"):
        window.arrange(layout)
        turn(shell)
        assert window.focusWidget() is window.prompt.edit, layout


def test_what_a_warning_took_of_the_tokens_is_given_back(running: Shell) -> None:
    prompt = running.window.prompt
    prompt.choose("ids")
    heights = []
    for text in ("5 3", "5 -3", "5 3"):
        prompt.edit.set_text(text)
        turn(running)
        heights.append(running.window.docks.docks["prompt"].height())
    assert heights[0] < heights[1], "the warning has its place"
    assert heights[2] == heights[0]


def test_a_tall_prompt_takes_room_of_the_tokens_and_gives_it_back(shell: Shell) -> None:
    docks = shell.window.docks
    QApplication.processEvents()
    prompt, tokens = docks.docks["prompt"], docks.docks["tokens"]
    usual, both = prompt.height(), prompt.height() + tokens.height()
    for wanted, height in ((usual + 60, usual + 60), (usual - 60, usual + 60), (2 * both, both - LEAST_TOKENS)):
        shell.window.prompt.room_wanted.emit(wanted)
        QApplication.processEvents()
        assert prompt.height() == height, "a request never makes it smaller"
        assert prompt.height() + tokens.height() == both
    shell.window.prompt.room_wanted.emit(0)
    turn(shell, 2)
    assert prompt.height() == usual
    shell.window.prompt.choose("chat")
    turn(shell, 2)
    assert prompt.height() == min(CHAT_HEIGHT, both - LEAST_TOKENS)
    shell.window.prompt.choose("text")
    turn(shell, 2)
    assert prompt.height() == usual
    docks.docks["bytes"].topLevelChanged.emit(False)
    shell.window.prompt.room_wanted.emit(usual + 40)
    shell.window.prompt.room_wanted.emit(0)
    turn(shell, 2)
    assert prompt.height() == usual, "it had this height in the arrangement by hand too"
    shell.window.prompt.choose("chat")
    turn(shell, 2)
    state = docks.save()
    shell.window.prompt.choose("text")
    docks.arrange("inspect")
    docks.restore(state)
    turn(shell, 2)
    assert prompt.height() == usual, "a later window begins with a text"


def test_panels_stand_where_it_was_approved(shell: Shell) -> None:
    """In every layout the columns, from the left, with what stands in each from above and what lies behind it; and how
    much of a usual window each takes, in percent."""
    window = shell.window
    window.need_all()
    window.resize(1600, 1000)
    lines = []
    for layout in GRIDS:
        window.arrange(layout)
        turn(shell, 5)
        lines.append(f"== {layout}")
        seen = {name: dock.geometry() for name, dock in window.docks.docks.items() if dock.isVisible()}
        places = {name: place for name, place in seen.items() if place.right() >= 0}
        for name, place in sorted(places.items(), key=lambda each: (each[1].left(), each[1].top())):
            lines.append(f"{name} ~{place.width() / 16:.0f} % × ~{place.height() / 10:.0f} %")
        lines.append(f"behind others: {', '.join(name for name in seen if name not in places)}")
    approve(Path(__file__).parent / "approved" / "places.txt", lines)


def test_a_prompt_takes_the_room_that_it_needs_and_gives_it_back(shell: Shell) -> None:
    window = shell.window
    window.need_all()
    window.resize(1600, 1000)
    window.arrange("inspect")
    docks = window.docks.docks
    heights = []
    for pixels in (0, 400, 5000, 0):
        window.docks.make_prompt_taller(pixels)
        turn(shell, 2)
        heights.append((docks["prompt"].height(), docks["tokens"].height()))
    usual, taller, most, after = heights
    assert taller[0] > usual[0]
    assert most[0] >= taller[0]
    assert min(tokens for _, tokens in heights) > 40, "the panel below keeps some room"
    assert after == usual


@pytest.mark.parametrize("layout", ["inspect", "truth"])
def test_a_name_stands_once_where_a_tab_shows_it(shell: Shell, layout: str) -> None:
    """From the window's first picture on: the title beside the tab used to go when something was rearranged."""
    if layout != "inspect":
        shell.window.arrange(layout)
    turn(shell)
    docks = shell.window.docks
    tabbed = [dock for dock in docks.docks.values() if docks.tabifiedDockWidgets(dock)]
    assert tabbed
    assert all(dock.panel.title_label.isHidden() for dock in tabbed)


def test_a_panel_is_hidden_from_its_own_menu(shell: Shell) -> None:
    """The entry was a check mark beside the panel's name, under what is done with its picture."""
    wall = shell.window.wall
    wall.open_menu()
    (menu,) = wall.findChildren(QMenu)
    (hide,) = (action for action in menu.actions() if action.text() == "Hide this panel")
    hide.trigger()
    menu.close()
    turn(shell)
    assert not wall.isVisible()


def test_panels_that_share_a_place_are_deleted_one_by_one_when_a_program_ends(shell: Shell) -> None:
    docks = shell.window.docks
    first = next(dock for dock in docks.docks.values() if docks.tabifiedDockWidgets(dock))
    with capture_exceptions() as raised:
        for dock in (first, *docks.tabifiedDockWidgets(first)):
            delete(dock)
            turn(shell, 1)
    assert not raised


def test_a_name_stands_once_in_an_arrangement_that_is_shown_again(shell: Shell) -> None:
    docks = shell.window.docks
    docks.docks["inspector"].setFloating(True)
    docks.docks["inspector"].setFloating(False)
    turn(shell)
    saved = docks.arrangement
    assert saved.state, "it was arranged by hand"
    shell.window.arrange("learn")
    turn(shell)
    shell.window.show_arrangement(saved)
    turn(shell)
    tabbed = [dock for dock in docks.docks.values() if docks.tabifiedDockWidgets(dock)]
    assert tabbed
    assert all(dock.panel.title_label.isHidden() for dock in tabbed)
