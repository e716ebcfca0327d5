"""The top bar: its buttons keep their places, and its counter and words fit."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, Qt
from pytestqt.qtbot import QtBot

from app.shell import Shell
from app.window.bars import StepCounter, TransportButton
from engine.spec.cache import cache_preset
from engine.spec.edit import Rows, Zero
from engine.wire.commands import UndoEdit
from engine.wire.events import NodeAdded, StateChanged
from engine.wire.records import EditMade
from engine.wire.tree import Node
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.found import button
from tests.app.painted import painted
from tests.app.window.test_window import PaintCounter


def transport_button(shell: Shell, action: str) -> TransportButton:
    buttons = shell.window.top.transport.findChildren(TransportButton)
    return next(each for each in buttons if each.defaultAction() is shell.actions[action])


def place(shell: Shell) -> tuple[int, int]:
    """Left edge and width of the run button in the top bar."""
    run = transport_button(shell, "run.run")
    return run.mapTo(shell.window.top, QPoint(0, 0)).x(), run.width()


@pytest.mark.parametrize("size", [(980, 700), (1280, 800), (1600, 1000)])
def test_the_transport_keeps_its_place(shell: Shell, engine: FakeEngine, size: tuple[int, int]) -> None:
    shell.window.resize(*size)
    turn(shell)
    before = place(shell)
    engine.loaded()
    turn(shell)
    assert place(shell) == before, "a model's name"
    status = samples.status(1)
    assert status.model is not None
    long_name = replace(status.model, name="a-model-with-a-very-long-name-of-its-own-and-then-some")
    engine.emit(StateChanged(replace(status, model=long_name, cache=cache_preset("transformers-quantized").spec)))
    turn(shell)
    assert place(shell) == before, "a longer name, a longer cache"
    shell.window.actions_["prompt.send"].trigger()
    turn(shell)
    shell.intents.on_run_to(20)
    turn(shell, 10)
    shell.models.selection.update(step=3)
    turn(shell)
    assert shell.window.top.earlier.isVisible()
    assert place(shell) == before, "looking back brings two buttons"


def test_the_word_beside_the_step_is_whole_or_not_there(running: Shell) -> None:
    (counter,) = running.window.findChildren(StepCounter)
    texts = []
    for width in (counter.sizeHint().width(), counter.sizeHint().width() - 40):
        counter.setFixedWidth(width)
        turn(running)
        texts.append([line for line in painted(counter) if line.startswith("text")])
    wide, narrow = ("".join(lines) for lines in texts)
    assert "‹step›" in wide
    assert "‹step›" not in narrow
    assert "‹20›" in narrow


def test_a_click_on_a_button_that_goes_leaves_the_focus_where_it_was(running: Shell, qtbot: QtBot) -> None:
    window = running.window
    window.activateWindow()
    for name in ("Go on here", "Back to live"):
        running.intents.on_step_back()
        turn(running)
        window.timeline.setFocus()
        pressed = button(window.top.earlier, name)
        qtbot.mouseClick(pressed, Qt.MouseButton.LeftButton)
        turn(running)
        assert not pressed.isVisible()
        assert window.timeline.hasFocus(), name


def test_each_button_has_an_icon_of_its_own_in_the_ink_of_the_theme(shell: Shell) -> None:
    def icons() -> list[bytes]:
        actions = (shell.actions[name] for name in ("run.first", "run.back", "run.step", "run.run", "run.cancel"))
        return [bytes(action.icon().pixmap(17, 17).toImage().constBits()) for action in actions]

    dark = icons()
    assert len(set(dark)) == 5
    shell.set_theme("light")
    assert not set(icons()) & set(dark)


def test_step_and_run_are_named_with_their_keys_where_there_is_room(shell: Shell) -> None:
    step, run = transport_button(shell, "run.step"), transport_button(shell, "run.run")
    shell.window.resize(1600, 1000)
    turn(shell)
    assert (step.text(), run.text()) == ("Step F10", "Run F5")
    assert step.width() > 80
    shell.window.resize(1280, 800)
    turn(shell)
    assert step.width() == run.width() == 34


def test_an_edit_is_counted_as_the_moment_that_it_is(running: Shell, engine: FakeEngine) -> None:
    """The list of edits, the counter and the timeline show the same number for it."""
    counter, latest = running.window.top.counter, running.models.timeline.latest
    assert latest is not None
    assert counter.state is not None
    running.intents.on_edited(Zero(0, Rows(4, 8, (3,), (1,))))
    turn(running)
    (made,) = running.models.edits.made
    assert made.step > latest.step
    assert (counter.state.shown, counter.state.total) == (str(made.step), str(made.step))
    assert counter.state.words == "live · edited"
    running.intents.send(UndoEdit())
    turn(running)
    assert (counter.state.shown, counter.state.total, counter.state.words) == (str(latest.step),) * 2 + ("live",)
    running.intents.on_edited(Zero(0, Rows(0, 2)))
    turn(running)
    made = running.models.edits.made[-1]
    running.intents.on_step()
    turn(running)
    running.models.selection.update(step=made.step)
    assert (counter.state.shown, counter.state.words) == (str(made.step), "at an edit")
    assert running.window.timeline.accessibleDescription() == f"step {made.step}"
    running.window.actions_["run.back"].trigger()
    assert running.models.selection.now.step == latest.step
    assert counter.state.words == "looking back"
    running.models.selection.update(step=None)


def test_the_notice_of_an_edit_begins_with_its_result(running: Shell, engine: FakeEngine) -> None:
    """A narrow window cuts only the end off, which says how long it took."""
    edit = Zero(0, Rows(4, 8, (3,), (1,)))
    node = Node(99, running.models.history.live, (EditMade(edit),), running.models.status.now.cache)
    engine.emit(NodeAdded(node, is_live=True, how="3 ms, measured in 29 ms", kl=0.0066))
    turn(running)
    expected = f"The next token moved by 0.00660 nats · {edit.describe()} · 3 ms, measured in 29 ms"
    assert running.models.status.notice == expected


def test_another_step_paints_the_counter_anew(running: Shell) -> None:
    """Even if it is as wide as the one before."""
    (counter,) = running.window.findChildren(StepCounter)
    running.models.selection.update(step=12)
    turn(running)
    painted = PaintCounter()
    counter.installEventFilter(painted)
    running.models.selection.update(step=13)
    turn(running)
    counter.removeEventFilter(painted)
    assert painted.count == 1
