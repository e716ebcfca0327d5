"""Random clicks and keys break nothing, and partial repaints give the same picture as a whole repaint."""

from __future__ import annotations

import random

import pytest
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QApplication, QDialog, QFileDialog

from app.control.actions import declared_in
from app.control.conditions import reasons
from app.shell import Shell
from engine.wire.events import Failed, StateChanged
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.on_screen import assert_repainted
from tests.effort import effort

MODAL = {"quit", "view.full"}


def check_invariants(shell: Shell) -> None:
    """Invariants: the selection is of this history, and an action is enabled exactly where its conditions hold."""
    models, actions = shell.models, shell.actions
    now, timeline = models.selection.now, models.timeline
    assert now.step is None or now.step in timeline.nodes
    assert now.position is None or 0 <= now.position < max(1, timeline.num_tokens(now.seq_id))
    assert 0 <= now.layer < samples.LAYERS
    assert 0 <= now.kv_head < samples.KV_HEADS
    can, found = shell.window.picture.abilities, reasons(models)
    for action in declared_in(actions.menus):
        if action.name in ("view.reset", "view.zoom", "view.colors"):
            assert actions[action.name].isEnabled() == (action.name in can), action.name
        else:
            why_not = found[action.needs] if action.needs else ""
            assert actions[action.name].isEnabled() == (not why_not), action.name
            assert actions.reason(action.name) == why_not
    if timeline.latest is None:
        return
    counted = (
        now.step if now.step is not None else timeline.tip
    )  # an edit after the newest step has a number of its own
    assert f"step {counted} " in shell.window.top.counter.accessibleName()
    assert shell.window.timeline.accessibleDescription().split(",")[0] == f"step {counted}"
    assert len(shell.window.tokens.canvas.chips.tokens) == timeline.num_tokens(now.seq_id, now.step)


def test_a_monkey_breaks_nothing(running: Shell, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    play(running, engine, monkeypatch, effort(300, 10_000), seed=7)


def test_a_monkey_breaks_nothing_for_long(running: Shell, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    play(running, engine, monkeypatch, 2_000, seed=8)


def play(running: Shell, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, num_actions: int, seed: int) -> None:
    """Actions in any order: no exception, no warning, and what must hold holds after each twenty-five. Whoever asks for
    a file is given none: the system's dialogs wait for a person."""
    for ask in ("getOpenFileName", "getSaveFileName"):
        monkeypatch.setattr(QFileDialog, ask, lambda *_: ("", ""))
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_: "")
    rng = random.Random(seed)
    actions = [running.window.actions_[key] for key in running.window.actions_.names() if key not in MODAL]
    running.settings.theme = "dark"
    for turn_number in range(num_actions):
        action: QAction = rng.choice(actions)
        if action.data().startswith(("theme.", "layout.")) and rng.random() < 0.9:
            continue  # slow, and the same each time
        if len(running.models.timeline) > 60:
            running.intents.on_go_on_from_here() if running.models.selection.now.step else running.intents.on_step()
        action.trigger()
        if turn_number % 5 == 0:
            running.controller.tick()
        if turn_number % 25 == 0:
            for widget in QApplication.topLevelWidgets():
                if widget is not running.window and isinstance(widget, QDialog):
                    widget.reject()
            turn(running, 2)
            check_invariants(running)
            engine.emit(rng.choice([Failed("no"), StateChanged(engine.status)]))
    turn(running)
    running.window.actions_["run.live"].trigger()
    running.window.grab()


def test_partial_repaints_give_the_same_picture_as_a_whole_repaint(
    shell: Shell, engine: FakeEngine, qapp: QApplication
) -> None:
    """Panels repaint only what changed, and strips scroll: no old pixels may stay on the screen."""
    window, models = shell.window, shell.models
    window.resize(1600, 1000)
    engine.loaded()
    turn(shell)
    window.actions_["prompt.send"].trigger()
    turn(shell)
    for number in range(40):
        shell.intents.on_run_to(1 + number % 3)
        turn(shell, 1)
        if number % 9 == 8:
            models.selection.update(position=number, layer=number % 3)
        if number % 14 == 13:
            models.selection.update(step=number)
            turn(shell, 1)
            models.selection.update(step=None, position=None)
        turn(shell, 1)
    turn(shell)
    assert_repainted(window, "all that")
