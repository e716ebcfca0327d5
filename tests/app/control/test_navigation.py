"""Walking the selection by keys: what each leads to, at the edges and where layers differ."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot
from shiboken6 import isValid

from app.control import intents as navigation
from app.control.intents import LEAP, Navigator
from app.models import Models
from engine.geometry.dimensions import CacheGeometry
from tests.app import samples
from tests.app.conftest import new_shell, sweep, take_steps
from tests.app.fake_engine import FakeEngine


def uneven() -> CacheGeometry:
    """Twelve layers of four kv heads, but layer 5 has two and layer 7 keeps no K and V of its own."""
    layers = list(samples.geometry(layers=12).layers)
    layers[5] = replace(layers[5], num_kv_heads=2)
    layers[7] = replace(layers[7], kind="shared", shares_with=6, num_kv_heads=0)
    return replace(samples.geometry(layers=12), layers=tuple(layers))


@pytest.fixture
def walk(models: Models) -> Navigator:
    models.status.set(samples.status(5, model=samples.model_info(shape=uneven())))
    models.timeline.append(samples.story(5))
    return Navigator(models)


@pytest.mark.parametrize(
    ("where", "walked", "by", "there"),
    [
        ((4, 3), Navigator.walk_layers, +1, (5, 1)),  # the fourth head is not there: the last one is
        ((4, 1), Navigator.walk_layers, +1, (5, 1)),
        ((5, 1), Navigator.walk_layers, -1, (4, 1)),
        ((6, 2), Navigator.walk_layers, +1, (8, 2)),  # what keeps nothing is passed over
        ((8, 2), Navigator.walk_layers, -1, (6, 2)),
        ((0, 0), Navigator.walk_layers, -1, (0, 0)),
        ((11, 0), Navigator.walk_layers, +1, (11, 0)),
        ((10, 3), Navigator.walk_layers, -LEAP, (1, 3)),
        ((1, 3), Navigator.walk_layers, +LEAP, (10, 3)),
        ((9, 0), Navigator.walk_layers, +LEAP, (11, 0)),
        ((5, 1), Navigator.walk_heads, +1, (5, 1)),  # the last of two
        ((4, 1), Navigator.walk_heads, +1, (4, 2)),
        ((4, 0), Navigator.walk_heads, -1, (4, 0)),
        ((4, 3), Navigator.walk_heads, -1, (4, 2)),
    ],
)
def test_layers_and_heads(
    walk: Navigator,
    models: Models,
    where: tuple[int, int],
    walked: Callable[[Navigator, int], None],
    by: int,
    there: tuple[int, int],
) -> None:
    models.selection.update(layer=where[0], kv_head=where[1])
    walked(walk, by)
    assert (models.selection.now.layer, models.selection.now.kv_head) == there


@pytest.mark.parametrize(
    ("where", "step", "by", "there"),
    [
        (None, None, -1, 8),  # nothing is selected: the newest is
        (None, None, +1, 8),
        (8, None, -1, 7),
        (8, None, +1, 8),
        (0, None, -1, 0),
        (3, None, +1, 4),
        (8, 1, -1, 4),  # at step 1 there are five tokens
        (3, 1, +1, 4),
        (4, 1, +1, 4),
    ],
)
def test_tokens(walk: Navigator, models: Models, where: int | None, step: int | None, by: int, there: int) -> None:
    models.selection.update(step=step, position=where)
    walk.walk_tokens(by)
    assert models.selection.now.position == there


def test_a_replay_walks_every_step_and_ends_at_the_live_one(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, models: Models, qtbot: QtBot
) -> None:
    monkeypatch.setattr(navigation, "PLAY_MS", 0)
    walk, seen = request.getfixturevalue("walk"), list[int | None]()
    models.selection.changed.connect(lambda: seen.append(models.selection.now.step))
    walk.on_play_or_stop()
    assert walk.is_playing
    qtbot.waitUntil(lambda: not walk.is_playing)
    assert seen == [0, 1, 2, 3, 4, None]


def test_a_replay_begins_where_one_looks_and_stops_when_asked(walk: Navigator, models: Models) -> None:
    models.selection.update(step=3)
    walk.on_play_or_stop()
    assert models.selection.now.step == 3
    walk.on_play_or_stop()
    assert not walk.is_playing
    walk.on_play_or_stop()
    walk.on_live()
    assert (walk.is_playing, models.selection.now.step) == (False, None)


def test_another_history_ends_a_replay(walk: Navigator, models: Models) -> None:
    walk.on_play_or_stop()
    models.timeline.go_to(2)
    models.selection.update(step=None)
    assert not walk.is_playing


def test_a_replay_ends_with_its_window(qapp: QApplication, engine: FakeEngine) -> None:
    """Otherwise it goes on to select steps, which a window that is gone cannot show."""
    shell = new_shell(qapp, engine, (1280, 800))
    take_steps(shell, engine, 3)
    shell.actions["timeline.play"].trigger()
    assert shell.navigator.is_playing
    sweep(shell)
    assert not isValid(shell.navigator)
    shell.models.selection.update(step=1)


def test_a_single_step_has_no_past(models: Models) -> None:
    models.timeline.append(samples.story(0))
    Navigator(models).on_first_step()
    assert models.selection.now.step is None
