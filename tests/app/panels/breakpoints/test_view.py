"""The panel of breakpoints: a typed condition is searched in the past and marked; a kept one is sent to the engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QContextMenuEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMenu
from pytestqt.qtbot import QtBot

from app.dialogs.questions import RunToDialog
from app.kit.theme import current_theme
from app.panels.breakpoints import BreakpointsView
from app.shell import Shell
from app.start.settings import Settings
from app.window.menus import TIMELINE_GROUPS
from engine.errors import InputError
from engine.spec.cache import CacheSpec
from engine.spec.condition import MAX_BREAKPOINTS, ROWS, Breakpoint
from engine.spec.sampling import SamplingParams
from engine.wire.breakpoints import BreakpointHit, BreakpointState, MeasureAttention, SetBreakpoints
from engine.wire.commands import Run
from engine.wire.events import Failed, StateChanged
from tests.app.conftest import turn
from tests.app.driver import Driver
from tests.app.fake_engine import FakeEngine

pytestmark = pytest.mark.one_window


@pytest.fixture
def panel(running: Shell) -> Iterator[BreakpointsView]:
    """Twenty steps behind it."""
    panel = running.window.show_breakpoints()
    panel.line.clear()
    running.actions["breakpoints.add"].trigger()
    running.window.timeline.setFocus()
    turn(running)
    yield panel
    for widget in QApplication.topLevelWidgets():
        if isinstance(widget, QMenu | RunToDialog):
            widget.close()


def type_in(shell: Shell, panel: BreakpointsView, text: str) -> None:
    panel.line.setFocus()
    panel.line.selectAll()
    QTest.keyClicks(panel.line, text)
    panel.look()
    turn(shell, 3)


def cells(panel: BreakpointsView) -> list[tuple[str, ...]]:
    return [tuple(cell.text for cell in row) for row in panel.table.cells.rows]


def test_no_example_is_offered_that_stands_there_already(running: Shell, panel: BreakpointsView) -> None:
    offered = panel.line.completer().popup()
    type_in(running, panel, "norm > ")
    assert offered.isVisible()
    QTest.keyClicks(panel.line, "3")
    assert not offered.isVisible(), "it would hide what is found"


def test_what_is_typed_is_found_and_walked_through(running: Shell, panel: BreakpointsView) -> None:
    running.actions["breakpoints.find"].trigger()
    type_in(running, panel, "step = 4 or step = 9")
    assert panel.words.text() == "held at 2 of 21 steps · Enter: go to the next"
    panel.line.setFocus()
    QTest.keyClick(panel.line, Qt.Key.Key_Return)
    turn(running)
    assert running.models.selection.now.step == 4
    assert panel.words.text() == "held at 2 of 21 steps · here step 4 · Enter: go to the next"
    QTest.keyClick(panel.line, Qt.Key.Key_Return)
    turn(running)
    assert running.models.selection.now.step == 9
    QTest.keyClick(panel.line, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    turn(running)
    assert running.models.selection.now.step == 4
    QTest.keyClick(panel.line, Qt.Key.Key_Escape)
    turn(running)
    assert panel.words.text().startswith("Type a condition")
    assert not panel.next.isEnabled()


def test_enter_keeps_what_is_typed_as_a_stop_and_then_walks(
    running: Shell, panel: BreakpointsView, engine: FakeEngine
) -> None:
    assert panel.words.text().endswith("and Enter adds a breakpoint: runs halt there.")
    type_in(running, panel, "step = 4 or step = 9")
    assert panel.words.text() == "held at 2 of 21 steps · Enter: add breakpoint"
    panel.line.setFocus()
    QTest.keyClick(panel.line, Qt.Key.Key_Return)
    turn(running, 3)
    assert [stop.text for stop in engine.of(SetBreakpoints)[-1].breakpoints] == ["step = 4 or step = 9"]  # type: ignore[attr-defined]
    assert panel.words.text() == "held at 2 of 21 steps · Enter: go to the next"
    QTest.keyClick(panel.line, Qt.Key.Key_Return)
    turn(running)
    assert running.models.selection.now.step == 4
    running.actions["breakpoints.find"].trigger()
    type_in(running, panel, "step = 5")
    QTest.keyClick(panel.line, Qt.Key.Key_Return)
    turn(running)
    assert running.models.selection.now.step == 5
    assert len(running.models.breakpoints.listed) == 1, "finding keeps nothing"


@pytest.mark.parametrize("is_kept", [False, True])
def test_the_list_of_conditions_leaves_what_is_found_in_sight(
    running: Shell, panel: BreakpointsView, *, is_kept: bool
) -> None:
    panel.line.setFocus()
    QTest.keyClicks(panel.line, "entropy > 2")
    completer = panel.line.completer()
    assert completer is not None
    completer.complete()
    offered = completer.popup()
    assert offered.isVisible()
    if is_kept:
        panel.halt_there()
    else:
        QTest.keyClick(offered, Qt.Key.Key_Return)
    assert not offered.isVisible()


def test_a_condition_that_is_none_says_where_in_place(
    running: Shell, panel: BreakpointsView, engine: FakeEngine
) -> None:
    type_in(running, panel, "entrpy > 2")
    assert panel.words.text() == "At character 1 “entrpy” cannot stand: write entropy."
    assert panel.words.property("textRole") == "warning"
    assert not panel.add.isEnabled()
    panel.halt_there()
    assert not engine.of(SetBreakpoints)
    type_in(running, panel, "pages_moved")
    assert "moves no pages: take the offloaded cache." in panel.words.text()
    assert panel.add.isEnabled()  # another mode may have them


def test_one_breakpoint_too_many_is_refused_in_words(running: Shell, panel: BreakpointsView) -> None:
    running.intents.on_breakpoints_changed(tuple(Breakpoint(n, f"step = {n}") for n in range(1, MAX_BREAKPOINTS + 1)))
    type_in(running, panel, "step = 999")
    panel.add.click()
    assert panel.words.text() == f"There are {MAX_BREAKPOINTS} breakpoints already: delete one first."
    assert len(running.models.breakpoints.listed) == MAX_BREAKPOINTS


def test_a_stop_is_added_switched_changed_and_deleted(
    running: Shell, panel: BreakpointsView, engine: FakeEngine
) -> None:
    type_in(running, panel, "step = 4 or step = 9")
    panel.add.click()
    turn(running, 3)
    assert engine.of(SetBreakpoints)[-1].breakpoints == (Breakpoint(1, "step = 4 or step = 9"),)
    assert cells(panel) == [("● on", "step = 4 or step = 9", "2", "9", "step 9")]
    assert panel.add.isHidden()
    index = panel.table.cells.index(0, 0)
    QTest.mouseClick(panel.table.viewport(), Qt.MouseButton.LeftButton, pos=panel.table.visualRect(index).center())
    turn(running)
    assert engine.of(SetBreakpoints)[-1].breakpoints == (Breakpoint(1, "step = 4 or step = 9", is_enabled=False),)
    assert cells(panel)[0][0] == "○ off"
    type_in(running, panel, "step = 7")
    panel.change_it.trigger()
    turn(running, 3)
    assert engine.of(SetBreakpoints)[-1].breakpoints == (Breakpoint(1, "step = 7", is_enabled=False),)
    assert cells(panel)[0][2:4] == ("1", "7")
    running.window.activateWindow()
    panel.table.setFocus()
    turn(running)
    QTest.keyClick(panel.table, Qt.Key.Key_Delete)
    turn(running)
    assert engine.of(SetBreakpoints)[-1].breakpoints == ()
    assert cells(panel) == []


def test_a_double_click_on_the_switch_switches_once_and_enter_too(
    running: Shell, panel: BreakpointsView, qtbot: QtBot
) -> None:
    type_in(running, panel, "step = 4")
    panel.add.click()
    turn(running, 3)
    surface, place = panel.table.viewport(), panel.table.visualRect(panel.table.model().index(0, 0)).center()
    assert running.models.breakpoints.listed[0].is_enabled
    QTest.mouseClick(surface, Qt.MouseButton.LeftButton, pos=place)
    QTest.mouseDClick(surface, Qt.MouseButton.LeftButton, pos=place)
    assert not running.models.breakpoints.listed[0].is_enabled
    panel.table.setCurrentIndex(panel.table.model().index(0, 0))
    qtbot.keyClick(panel.table, Qt.Key.Key_Return)
    assert running.models.breakpoints.listed[0].is_enabled


def test_the_same_condition_is_kept_once(running: Shell, panel: BreakpointsView) -> None:
    for _ in range(2):
        type_in(running, panel, "step = 4")
        panel.add.click()
    assert running.models.breakpoints.listed == (Breakpoint(1, "step = 4"),)


def test_a_condition_that_is_switched_off_says_so_and_is_switched_on(running: Shell, panel: BreakpointsView) -> None:
    """Typed once more, it used to look like one that halts: nothing was added, and the run went on."""
    running.intents.on_breakpoints_changed((Breakpoint(1, "step = 4", is_enabled=False),))
    type_in(running, panel, "step = 4")
    off = "held at 1 of 21 steps · switched off: runs do not halt there · Enter: "
    assert panel.words.text() == off + "switch it on"
    assert (panel.add.text(), panel.add.isEnabled()) == ("Switch on", True)
    running.actions["breakpoints.find"].trigger()
    assert panel.words.text() == off + "go to the next", "who searches is not made to stop there"
    running.actions["breakpoints.add"].trigger()
    assert running.models.breakpoints.listed == (Breakpoint(1, "step = 4"),)
    assert panel.words.text() == "held at 1 of 21 steps · Enter: go to the next"


def test_a_click_on_a_stop_looks_for_it(running: Shell, panel: BreakpointsView) -> None:
    running.intents.on_breakpoints_changed((Breakpoint(1, "step = 4"), Breakpoint(2, "step > 15")))
    turn(running, 3)
    index = panel.table.cells.index(1, 1)
    QTest.mouseClick(panel.table.viewport(), Qt.MouseButton.LeftButton, pos=panel.table.visualRect(index).center())
    turn(running, 3)
    assert panel.line.text() == "step > 15"
    assert panel.words.text().startswith("held at 5 of 21 steps")


def test_last_values_are_those_of_the_shown_step(running: Shell, panel: BreakpointsView) -> None:
    running.intents.on_breakpoints_changed((Breakpoint(1, "step = 4 or step = 9"),))
    running.models.selection.update(step=6)
    turn(running, 3)
    assert cells(panel)[0][2:] == ("2", "4", "step 4")
    running.models.selection.update(step=2)
    turn(running)
    assert cells(panel)[0][2:] == ("2", "–", "")


def test_what_the_engine_says_of_a_stop_stands_in_its_row(
    running: Shell, panel: BreakpointsView, engine: FakeEngine
) -> None:
    stop = Breakpoint(1, 'text ~ "(a+)+$"')
    running.intents.on_breakpoints_changed((stop,))
    status = running.models.status.now
    assert status is not None
    engine.emit(StateChanged(replace(status, breakpoints=(BreakpointState(stop, "Its pattern takes too long."),))))
    turn(running, 2)
    assert cells(panel)[0][4] == "Its pattern takes too long."


def test_an_example_is_put_into_the_line(running: Shell, panel: BreakpointsView) -> None:
    panel.examples.click()
    (menu,) = [w for w in QApplication.topLevelWidgets() if isinstance(w, QMenu) and w.isVisible()]
    actions = menu.actions()
    assert [action.data() for action in actions] == [row.example for row in ROWS]
    actions[3].trigger()
    assert panel.line.text() == ROWS[3].example
    assert running.models.breakpoints.query == ROWS[3].example


def test_a_halt_is_told_and_marked(running: Shell, engine: FakeEngine) -> None:
    engine.emit(BreakpointHit(1, "step = 9", 9, 0, "step 9"))
    turn(running, 2)
    assert running.models.status.notice == "Halted at step 9: step = 9 · step 9 · sequence 0"
    bar = running.window.timeline
    image = bar.grab().toImage()
    ratio = image.devicePixelRatio()
    x = round(bar.track.x_of(9) * ratio)
    assert image.pixelColor(x, round(3 * ratio)).name() == current_theme().color("bad").name()
    assert (
        image.pixelColor(round(bar.track.x_of(12) * ratio), round(3 * ratio)).name()
        != current_theme().color("bad").name()
    )


def test_found_steps_are_marked_on_the_timeline(running: Shell, panel: BreakpointsView) -> None:
    bar = running.window.timeline
    type_in(running, panel, "step = 4 or step = 9")
    image, accent = bar.grab().toImage(), current_theme().color("accent").name()
    ratio = image.devicePixelRatio()
    marked = [step for step in range(21) if image.pixelColor(round(bar.track.x_of(step) * ratio), 2).name() == accent]
    assert marked == [4, 9]
    assert bar.accessibleDescription() == "step 20, 2 found"


def test_an_engine_that_cannot_say_leaves_attention_unknown(
    running: Shell, panel: BreakpointsView, engine: FakeEngine
) -> None:
    type_in(running, panel, "attention(2) > 0")
    (asked,) = engine.of(MeasureAttention)
    assert [place.step for place in asked.places] == list(range(21))
    engine.emit(Failed("This is an opened snapshot.", reply_to=engine.id_of(MeasureAttention)))
    turn(running, 4)
    assert panel.words.text() == "held at 0 of 21 steps · not known at 21 of them · Enter: add breakpoint"
    assert not running.models.status.failure


def test_breakpoints_are_remembered_and_what_cannot_be_read_is_left_out(running: Shell) -> None:
    running.intents.on_breakpoints_changed((Breakpoint(1, "step = 4"), Breakpoint(2, "entropy > 2", is_enabled=False)))
    running.remember()
    assert running.settings.kept_breakpoints() == (
        Breakpoint(1, "step = 4"),
        Breakpoint(2, "entropy > 2", is_enabled=False),
    )
    damaged = Settings(breakpoints=["entrpy > 2", "# step = 1"])
    assert damaged.kept_breakpoints() == (Breakpoint(1, "step = 1", is_enabled=False),)


def test_a_run_goes_so_far_as_the_dialog_says(running: Shell, engine: FakeEngine) -> None:
    running.window.actions_["run.to"].trigger()
    (dialog,) = running.window.findChildren(RunToDialog)
    assert dialog.answer() == 32
    count = running.models.timeline.num_tokens(0)
    dialog.tokens.setValue(count + 6)
    assert dialog.answer() == f"tokens >= {count + 6} and sequence = 0"
    dialog.tokens.setValue(2)
    with pytest.raises(InputError, match="tokens already: give more, or go back to that step"):
        dialog.answer()
    dialog.condition.setFocus()
    QTest.keyClicks(dialog.condition, "pages_moved")
    with pytest.raises(InputError, match="take the offloaded cache"):
        dialog.answer()
    dialog.condition.clear()
    QTest.keyClicks(dialog.condition, "entropy > 2")
    dialog.accept()
    turn(running)
    assert [command.until for command in engine.of(Run)] == ["entropy > 2"]


def test_stop_strings_are_part_of_the_sampling(shell: Shell) -> None:
    popup = shell.window.prompt.findChildren(type(shell.window.prompt.sampling_button.popup))[0]
    popup.stop.setText(r'"\n\n" "The end"')
    popup.stop.editingFinished.emit()
    assert popup.params(0).stop == ("\n\n", "The end")
    popup.stop.setText('The "end"')
    popup.stop.editingFinished.emit()
    assert popup.params(0).stop == ("\n\n", "The end")
    assert "outside quotes" in popup.problem.text()
    popup.show_params(SamplingParams(stop=("a b",)))
    assert popup.stop.text() == '"a b"'


@pytest.fixture
def desk(qapp: QApplication) -> Iterator[Driver]:
    desk = Driver(qapp, CacheSpec("paged"), prompt="Once upon a time")
    desk.window.actions_["prompt.send"].trigger()
    desk.until(lambda: len(desk.models.timeline) > 0 and desk.controller.is_idle)
    yield desk
    desk.close()


def test_a_real_run_halts_where_the_panel_says_and_the_search_finds_the_same(desk: Driver, qtbot: QtBot) -> None:
    panel = desk.window.show_breakpoints()
    panel.line.setText("entropy < 1.5 and not attention(2-3) > 90%")
    panel.halt_there()
    desk.window.actions_["run.run"].trigger()
    desk.until(lambda: desk.models.breakpoints.hits and desk.controller.is_idle)
    (hit,), latest = desk.models.breakpoints.hits.values(), desk.models.timeline.latest
    assert latest is not None
    assert hit.step == latest.step
    entropies = [record.sequences[0].entropy for record in desk.models.timeline]
    assert [entropy < 1.5 for entropy in entropies if entropy is not None] == [False] * (len(entropies) - 1) + [True]
    desk.until(lambda: desk.models.breakpoints.queried is not None and desk.models.breakpoints.queried.is_done)
    search = desk.models.breakpoints.queried
    assert search is not None
    assert search.matches == [hit.step]
    assert search.verdicts[hit.step].value == hit.value


def menus() -> list[QMenu]:
    return [w for w in QApplication.topLevelWidgets() if isinstance(w, QMenu) and w.isVisible()]


def test_a_step_of_the_timeline_has_a_menu(running: Shell, panel: BreakpointsView) -> None:
    bar = running.window.timeline
    place = QPoint(round(bar.track.x_of(7)), bar.height() // 2)
    QApplication.sendEvent(bar, QContextMenuEvent(QContextMenuEvent.Reason.Mouse, place, bar.mapToGlobal(place)))
    turn(running)
    assert running.models.selection.now.step == 7
    (menu,) = menus()
    texts = [action.text() for action in menu.actions() if action.text()]
    actions = running.window.actions_
    assert texts[0] == "Step 7"
    assert texts[1:] == [actions[name].text() for group in TIMELINE_GROUPS for name in group]
    assert actions["run.go_on"].isEnabled()


def test_the_menu_of_a_token_leads_to_its_step_and_runs_on(running: Shell, panel: BreakpointsView) -> None:
    running.models.selection.update(position=9)
    running.window.tokens.menu_wanted.emit(QPoint(50, 50))
    turn(running)
    (menu,) = menus()
    actions = running.window.actions_
    wanted = [actions[name] for name in ("run.here_token", "run.at_token", "run.go_on", "run.to")]
    assert [action for action in menu.actions() if action in wanted] == wanted
