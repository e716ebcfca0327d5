from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from app.actions.finding import action_entries
from app.actions.menus import MENUS
from app.control.actions import Action, Actions, declared_in, tool_tip
from app.dialogs.help import KeysDialog
from app.kit.theme import current_theme
from app.shell import Shell
from app.window.palette import Palette
from engine.wire.events import EngineLost
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine


def test_no_key_means_two_things_in_one_place() -> None:
    keys = [(action.where, action.key) for action in declared_in(MENUS) if action.key]
    assert len(keys) == len(set(keys))
    assert not {key for where, key in keys if where == "window"} & {key for where, key in keys if where != "window"}


def test_plain_letters_and_space_never_act_while_typing() -> None:
    plain = [action for action in declared_in(MENUS) if len(action.key) == 1 or action.key == "Space"]
    assert {action.name for action in plain if action.where == "window"} == {"help.keys"}  # ? is typed by editors first


def test_a_name_stands_once() -> None:
    names = [action.name for action in declared_in(MENUS)]
    assert len(names) == len(set(names))


def test_what_is_not_possible_is_grey_and_says_why(shell: Shell, engine: FakeEngine) -> None:
    actions: Actions = shell.window.actions_
    assert not actions["prompt.add"].isEnabled()
    assert actions.reason("prompt.add") == "no model is loaded yet"
    assert actions["prompt.send"].isEnabled()  # it is sent when the model is there
    engine.loaded()
    turn(shell)
    assert actions["prompt.add"].isEnabled()
    assert actions["run.step"].isEnabled()  # the first one sends the prompt
    assert not actions["run.run"].isEnabled()
    actions["prompt.send"].trigger()
    turn(shell)
    assert actions["run.run"].isEnabled()
    assert not actions["run.go_on"].isEnabled()
    actions["run.step"].trigger()
    turn(shell)
    actions["run.back"].trigger()
    turn(shell)
    assert actions["run.go_on"].isEnabled()


def test_an_engine_that_dies_before_it_says_anything_is_the_reason(shell: Shell, engine: FakeEngine) -> None:
    assert shell.window.actions_.reason("capture.off") == "no model is loaded yet"
    engine.emit(EngineLost("the engine was killed", has_ended=True))
    turn(shell)
    assert not shell.models.status.is_known
    assert shell.window.actions_.reason("capture.off") == "the engine is gone: restart it"


def test_a_finished_text_cannot_be_stepped(shell: Shell, engine: FakeEngine) -> None:
    finished = samples.SequenceInfo(0, "finished", 9, 4, None, "end of text")
    status = samples.status(5)
    from msgspec.structs import replace

    from engine.wire.events import StateChanged

    engine.emit(StateChanged(replace(status, sequences=(finished,))))
    turn(shell)
    assert "ended" in shell.window.actions_.reason("run.step")


def test_records_that_come_together_in_a_run_make_going_back_possible(shell: Shell, engine: FakeEngine) -> None:
    engine.loaded()
    turn(shell)
    shell.models.status.set(samples.status(running=True))
    turn(shell)
    assert not shell.window.actions_["run.back"].isEnabled()
    shell.models.timeline.append(samples.story(6))
    turn(shell)
    assert shell.window.actions_["run.back"].isEnabled()


def test_the_palette_finds_and_does(shell: Shell, engine: FakeEngine) -> None:
    engine.loaded()
    turn(shell)
    palette = Palette([*action_entries(shell.window.actions_)], shell.window)
    palette.open_over(shell.window)
    palette.line.setText("theme light")
    assert palette.matches()[0] == "theme.light"
    QTest.keyClick(palette.line, Qt.Key.Key_Return)
    assert current_theme().name == "light"


def test_the_list_of_keys_names_them_all(dark_theme: None, shell: Shell) -> None:
    from PySide6.QtWidgets import QTreeWidget, QTreeWidgetItemIterator

    dialog = KeysDialog(shell.window.actions_, shell.window)
    dialog.show()
    tree = dialog.findChild(QTreeWidget)
    assert all(tree.columnWidth(column) >= tree.sizeHintForColumn(column) for column in range(3)), "no words are cut"
    walk, shown = QTreeWidgetItemIterator(tree), set()
    while walk.value() is not None:
        shown.add(walk.value().text(1))
        walk += 1
    assert {"F10", "F5", "Shift+F10", "Ctrl+Return", "?", "Space"} <= shown
    dialog.close()


def test_tool_tips_show_the_key() -> None:
    assert "F10" in tool_tip(next(action for action in declared_in(MENUS) if action.name == "run.step"))
    assert tool_tip(Action("x", "", "Do…", "", lambda _: None)) == "Do"


def test_a_grey_action_is_never_done_from_the_palette(shell: Shell, engine: FakeEngine) -> None:
    done: list[Action] = []
    shell.actions.triggered.connect(done.append)
    palette = Palette([*action_entries(shell.actions)], shell.window)
    palette.line.setText("add as another sequence")
    assert palette.matches()[0] == "prompt.add"
    assert not palette.rows.item(0).isEnabled()
    QTest.keyClick(palette.line, Qt.Key.Key_Return)
    assert not done
    palette.line.setText("theme light")
    QTest.keyClick(palette.line, Qt.Key.Key_Return)
    assert [action.name for action in done] == ["theme.light"]
