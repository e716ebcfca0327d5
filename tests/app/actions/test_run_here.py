"""Run to here: ahead of the live step, along a branch that was left, back to a moment, and to a token."""

from __future__ import annotations

from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest

from app.shell import Shell
from engine.wire.commands import GoTo, Run
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine


def press(shell: Shell, x: float, *, twice: bool = False) -> None:
    bar = shell.window.timeline
    click = QTest.mouseDClick if twice else QTest.mouseClick
    click(bar, Qt.MouseButton.LeftButton, pos=QPoint(round(x), bar.height() // 2))


def test_the_place_that_is_chosen_on_the_timeline_is_run_to(running: Shell, engine: FakeEngine) -> None:
    models, bar, here = running.models, running.window.timeline, running.window.actions_["run.here"]
    assert not here.isEnabled(), "no place is chosen"
    press(running, bar.track.x_of_ahead(5))
    assert (models.selection.now.step, models.selection.now.ahead) == (None, 5)
    assert bar.accessibleDescription() == "step 20, 5 steps ahead are chosen"
    assert bar.tip_at(QPoint(round(bar.track.x_of_ahead(5)), 0)).startswith("5 steps ahead of the live step")
    assert engine.of(Run) == [], "a click chooses and runs nothing"
    here.trigger()
    turn(running, 10)
    assert engine.of(Run) == [Run(5)]
    assert (models.history.live, models.selection.now.ahead) == (25, 0)
    press(running, bar.track.x_of_ahead(2), twice=True)
    turn(running, 10)
    assert engine.of(Run) == [Run(5), Run(2)]

    press(running, bar.track.x_of(9))
    assert models.selection.now.step == 9
    here.trigger()
    turn(running)
    assert engine.of(GoTo) == [GoTo(9)]

    press(running, bar.track.x_of_left(3))
    assert models.selection.now.step == 13
    engine.sent.clear()
    here.trigger()
    turn(running)
    assert engine.of(Run) == [Run(4)], "13 is four steps ahead of 9, which is live"
    assert models.selection.now.step is None

    engine.sent.clear()
    token_here = running.window.actions_["run.here_token"]
    models.selection.update(position=7)
    computed = models.timeline.token(0, 7)
    assert computed is not None
    token_here.trigger()
    assert engine.of(GoTo) == [GoTo(computed.step)], "it was computed before the live step"
    newest = models.timeline.num_tokens(0) - 1
    models.selection.update(position=newest)
    assert not token_here.isEnabled()
    assert "ends with this token" in token_here.toolTip()


def test_a_token_of_a_branch_that_was_left_is_run_to(running: Shell, engine: FakeEngine) -> None:
    models = running.models
    running.intents.send(GoTo(9))
    turn(running)
    models.selection.update(step=18)
    position = models.timeline.num_tokens(0, 14) - 1
    models.selection.update(position=position)
    engine.sent.clear()
    running.window.actions_["run.here_token"].trigger()
    assert engine.of(Run) == [Run(until=f"tokens >= {position + 1} and sequence = 0")]
