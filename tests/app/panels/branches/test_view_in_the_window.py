"""The panel of branches in a window: what its signals do there, and what the timeline shows of branches."""

from __future__ import annotations

from PySide6.QtCore import QPointF, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from app.shell import Shell
from engine.spec.edit import Rows, Zero
from engine.wire.commands import BeginBranch, DeleteBranch, GoTo, StartComparison
from engine.wire.comparison import OtherStep
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine


def test_the_window_goes_where_the_panel_says_and_comes_back(running: Shell, engine: FakeEngine) -> None:
    models = running.models
    newest = models.history.live
    running.window.branches.wants.emit(GoTo(9))
    turn(running)
    assert engine.of(GoTo) == [GoTo(9)]
    assert [record.step for record in models.timeline][-1] == 9
    bar = running.window.timeline
    assert bar.state is not None
    assert bar.state.left is not None
    assert bar.state.left.words == "11 more steps on the branch you left"
    place = QPointF(bar.track.x_of_left(4), bar.height() / 2).toPoint()
    QTest.mouseClick(bar, Qt.MouseButton.LeftButton, pos=place)
    assert models.selection.now.step == 14
    assert [record.step for record in models.timeline] == [*range(21)]
    assert (bar.state.index, bar.state.live_index, bar.state.left) == (14, 9, None)
    assert models.history.live == 9, "looking at a moment does not go there"
    running.window.actions_["run.return"].trigger()
    turn(running)
    assert models.history.live == newest
    assert models.selection.now.step is None


def test_a_branch_that_another_was_begun_beside_is_returned_to(running: Shell, engine: FakeEngine) -> None:
    models, back = running.models, running.window.actions_["run.return"]
    assert not back.isEnabled()
    models.selection.update(step=12)
    running.intents.send(BeginBranch(0, None, (42,)))
    turn(running)
    assert models.history.live == 21
    for tip in (20, 21):  # to and fro
        assert back.isEnabled()
        back.trigger()
        turn(running)
        assert models.history.live == tip


def test_where_branches_part_and_what_was_edited_is_marked_on_the_timeline(running: Shell, engine: FakeEngine) -> None:
    running.models.selection.update(step=12)
    running.intents.send(BeginBranch(0, None, (42,)))
    turn(running)
    engine.add_edit(Zero(0, Rows(0, 2)), 0)
    running.intents.on_step()
    turn(running)
    state = running.window.timeline.state
    assert state is not None
    assert [(mark.step, mark.kind) for mark in state.marks] == [(12, None), (22, "edit")]


def test_names_and_deletions_reach_the_history_and_the_engine(running: Shell, engine: FakeEngine) -> None:
    running.window.branches.named.emit(0, "the first try")
    assert running.models.history.names == {0: "the first try"}
    running.window.branches.wants.emit(DeleteBranch(17))
    assert engine.of(DeleteBranch) == [DeleteBranch(17)]


def test_comparing_hands_both_moments_to_the_comparison(running: Shell, engine: FakeEngine) -> None:
    running.window.branches.compared.emit(OtherStep(7))
    turn(running)
    assert engine.of(StartComparison) == [StartComparison(0, OtherStep(7))]
    assert running.window.docks.layout_name == "compare"


def test_the_panel_is_found_by_its_key(running: Shell, qapp: QApplication) -> None:
    assert running.window.branches.visibleRegion().isEmpty(), "behind another tab"
    running.window.actions_["view.branches"].trigger()
    qapp.processEvents()
    assert not running.window.branches.visibleRegion().isEmpty()
