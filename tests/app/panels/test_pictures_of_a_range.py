"""The range of tokens that pictures show: what is asked for, drawn and called live after a zoom."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace
from PySide6.QtCore import QPoint
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QApplication

from app.draw.grid import TokenRange, covers, rows_of
from app.kit.theme import current_theme
from app.shell import Shell
from engine.wire.events import Restarted, StateChanged
from engine.wire.pictures import (
    AttentionRequest,
    HeadRequest,
)
from engine.wire.status import SequenceInfo
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.panels.conftest import STEPS, TOKENS, chip


def test_a_range_is_moved_into_what_there_is() -> None:
    assert TokenRange(90, 130).within(0, 440) == (90, 130)
    assert TokenRange(90, 130).within(0, 100) == (60, 100)
    assert TokenRange(90, 130).within(0, 40) is None
    assert TokenRange(90, 130, follows=True).within(0, 440) == (400, 440)
    assert rows_of(TokenRange(89.5, 130.2), 440) == (89, 131)
    assert rows_of(TokenRange(90, 130), 30) == rows_of(None, 30) == (0, 30)
    assert covers((0, 40), (3.5, 40))
    assert not covers((4, 40), (3.5, 40))


def zoomed(shell: Shell) -> None:
    shell.window.head.map.zoom_to(100, 40)
    shell.window.attention.map.zoom_to(50, 20)
    turn(shell)
    assert shell.models.pictures.head.request.start == 80
    assert shell.models.pictures.attention.request.start == 40
    assert shell.window.head.map.visible_range == (80.5, 120.5)


def test_a_new_prompt_shows_all_of_itself(fresh: Shell, engine: FakeEngine) -> None:
    zoomed(fresh)
    fresh.window.actions_["prompt.send"].trigger()
    turn(fresh)
    fresh.intents.on_run_to(9)
    turn(fresh)
    count = samples.PROMPT + 9
    head, attention = fresh.models.pictures.head.request, fresh.models.pictures.attention.request
    assert (head.start, head.stop, attention.start, attention.stop) == (0, count, 0, None)
    for view in (fresh.window.head, fresh.window.attention):
        assert view.map.visible_range == (0, count)
        assert view.map.is_loaded
        assert chip(view)[1] == "live cache"


def test_another_sequence_shows_all_of_itself(fresh: Shell, engine: FakeEngine) -> None:
    zoomed(fresh)
    info = SequenceInfo(1, "decode", TOKENS, samples.PROMPT, 11, None)
    engine.emit(StateChanged(samples.status(STEPS, num_tokens=TOKENS)), Restarted())
    engine.emit(*(samples.step_record(step, seq_id=1) for step in range(STEPS + 1)))
    status = samples.status(STEPS, num_tokens=TOKENS)
    engine.emit(StateChanged(replace(status, sequences=(info,))))
    turn(fresh)
    assert fresh.models.selection.now.seq_id == 1
    assert fresh.models.viewport.now.head_range is None
    head = engine.requests(HeadRequest)[-1]
    assert (head.seq_id, head.start, head.stop) == (1, 0, TOKENS)


def test_what_is_not_loaded_yet_is_hatched_and_not_called_live(fresh: Shell, engine: FakeEngine) -> None:
    zoomed(fresh)
    view = fresh.window.head
    assert chip(view)[1] == "live cache"
    engine.is_silent = True
    view.reset_view()
    turn(fresh)
    assert view.map.visible_range == (0, TOKENS)
    assert not view.map.is_loaded
    assert chip(view) == ("part of it is not loaded yet", "past")
    plot = view.map.plot_rect.toRect()
    shown = view.map.grab().toImage()
    ground = QColor(current_theme().panel)
    left = {shown.pixelColor(QPoint(plot.left() + x, plot.top() + 3)).name() for x in range(5, 60)}
    assert len(left) > 1, "not one flat ground"
    assert ground.name() in left
    engine.is_silent = False
    fresh.controller.requests.pictures.reset()
    engine.emit(StateChanged(engine.status))  # what is wanted is asked for with what arrives
    turn(fresh)
    assert view.map.is_loaded
    assert chip(view)[1] == "live cache"


def test_following_the_newest_asks_for_the_newest(fresh: Shell, engine: FakeEngine) -> None:
    fresh.window.head.map.follow_newest()
    turn(fresh)
    fresh.intents.on_run_to(3)
    turn(fresh)
    head = fresh.models.pictures.head.request
    assert (head.start, head.stop) == (TOKENS + 3 - 64, TOKENS + 3)
    assert fresh.window.head.map.is_loaded


def test_home_f_and_c_are_possible_where_they_mean_something(fresh: Shell) -> None:
    window = fresh.window
    keys = ("view.reset", "view.zoom", "view.colors")
    for view, expected in (
        (window.wall, (False, False, False)),
        (window.head, (True, True, True)),
        (window.attention, (True, True, False)),
        (window.panels["timings"], (True, False, False)),
    ):
        view.setFocus()
        QApplication.processEvents()
        assert window.picture is view
        assert tuple(window.actions_[key].isEnabled() for key in keys) == expected
        for key in keys:
            assert bool(window.actions_.reason(key)) != window.actions_[key].isEnabled()


def test_home_and_f_move_the_newest_row(fresh: Shell, engine: FakeEngine) -> None:
    window = fresh.window
    fresh.models.selection.update(position=50)
    window.attention.setFocus()
    QApplication.processEvents()
    window.actions_["view.zoom"].trigger()
    turn(fresh)
    assert window.attention.map.visible_range == (38.5, 62.5)
    asked = engine.requests(AttentionRequest)[-1]
    assert (asked.start, asked.stop) == (38, 63)
    assert fresh.models.pictures.attention.positions.tolist() == list(range(38, 63))
    window.actions_["view.reset"].trigger()
    turn(fresh)
    assert window.attention.map.visible_range == (0, TOKENS)
    assert engine.requests(AttentionRequest)[-1].stop is None
    assert window.head.map.visible_range == (0, TOKENS)  # the other map has a range of its own


def test_another_model_and_a_rewind_leave_a_range_that_exists(fresh: Shell, engine: FakeEngine) -> None:
    zoomed(fresh)
    fresh.models.selection.update(step=60)
    fresh.intents.on_go_on_from_here()
    turn(fresh)
    count = samples.PROMPT + 60
    head = engine.requests(HeadRequest)[-1]
    assert (head.num_tokens, head.stop - head.start) == (count, 40)  # as close as before
    assert head.stop == count
    assert fresh.window.head.map.is_loaded
    other = samples.model_info("Other", shape=samples.geometry(layers=4))
    engine.emit(StateChanged(samples.status(60, num_tokens=count, model=other)))
    turn(fresh)
    assert fresh.models.viewport.now.head_range is None
    assert fresh.models.viewport.now.attention_range is None
    assert fresh.window.head.map.visible_range == (0, count)


def test_what_has_left_a_window_is_not_on_its_way(fresh: Shell, engine: FakeEngine) -> None:
    """A sliding layer holds positions from 90 on; 80 … 121 were asked for."""
    zoomed(fresh)
    view, piece = fresh.window.head, fresh.models.pictures.head
    kept = slice(90 - piece.request.start, None)
    fresh.models.pictures.put(
        replace(piece, low=piece.low[kept], high=piece.high[kept], positions=piece.positions[kept])
    )
    assert view.map.visible_range == (80.5, 120.5)
    assert view.map.is_loaded
    assert chip(view)[1] == "live cache"
    nothing = np.zeros((0, piece.low.shape[1]), np.float32)
    fresh.models.pictures.put(replace(piece, low=nothing, high=nothing, positions=piece.positions[:0]))
    assert "have left this head's window" in view.empty.text()
