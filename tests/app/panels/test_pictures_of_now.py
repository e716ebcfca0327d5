"""What a picture shows is what its label says: sharp, of the range that is visible, and of now or said so."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.dialogs.outliers import OutliersDialog
from app.draw.format import percent, token_label
from app.draw.token_range import TokenRange, covers, rows_of
from app.kit.theme import current_theme
from app.shell import Shell
from engine.wire.events import Restarted, StateChanged
from engine.wire.requests import (
    AttentionRequest,
    HeadRequest,
    OutliersRequest,
    WallRequest,
)
from engine.wire.status import SequenceInfo
from tests.app import samples
from tests.app.conftest import new_shell, sweep, take_steps, turn
from tests.app.fake_engine import FakeEngine

STEPS = 180
TOKENS = samples.PROMPT + STEPS


@pytest.fixture
def fresh(qtbot: QtBot, qapp: QApplication, engine: FakeEngine, request: pytest.FixtureRequest) -> Iterator[Shell]:
    """A window as the first start makes it: shown once, at one size, and no layout chosen by hand."""
    shell = new_shell(qapp, engine, getattr(request, "param", (1280, 800)))
    take_steps(shell, engine, STEPS)
    yield shell
    sweep(shell)


def chip(panel: object) -> tuple[str, str]:
    """What a panel's strip says of its source, and of which kind that is."""
    label = panel._provenance  # type: ignore[attr-defined]
    return label.text, label.kind


# ---- as sharp as its pixels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fresh", [(1280, 800), (1600, 1000), (2560, 1440)], indirect=True)
def test_after_a_fresh_start_a_token_with_two_pixels_has_a_column_of_its_own(fresh: Shell) -> None:
    window = fresh.window
    assert fresh.models.timeline.num_tokens(0) == TOKENS
    for view, piece in ((window.head, fresh.models.slices.head), (window.attention, fresh.models.slices.attention)):
        assert piece is not None
        pixels = view._map.plot_rect.width()
        assert view is window.attention or pixels >= 2 * TOKENS, "the test wants two pixels a token"
        per_column = piece.tokens_per_column
        assert -(-TOKENS // per_column) <= pixels, "no more columns than pixels"
        if pixels >= 2 * TOKENS:
            assert per_column == 1
        elif per_column > 1:  # widths are asked for in steps of 64 pixels: a finer picture would not fit
            assert -(-TOKENS // (per_column - 1)) > pixels - 64


def test_a_layout_asks_for_pictures_of_its_own_width(fresh: Shell) -> None:
    for layout in ("learn", "truth", "inspect"):
        fresh.window.arrange(layout)
        turn(fresh)
        for view in (fresh.window.head, fresh.window.attention):
            wanted = fresh.models.viewport.now
            columns = wanted.head_columns if view is fresh.window.head else wanted.attention_columns
            if view.isVisible():
                assert columns == view._map.num_columns, layout
                assert columns <= view._map.plot_rect.width() < columns + 64, layout
            else:
                assert columns is None, layout


# ---- the visible range has one owner -----------------------------------------------------------------------------


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
    shell.window.head._map.zoom_to(100, 40)
    shell.window.attention._map.zoom_to(50, 20)
    turn(shell)
    assert shell.models.slices.head.request.start == 80
    assert shell.models.slices.attention.request.start == 40
    assert shell.window.head._map.visible_range == (80.5, 120.5)


def test_a_new_prompt_shows_all_of_itself(fresh: Shell, engine: FakeEngine) -> None:
    zoomed(fresh)
    fresh.window.actions_["prompt.send"].trigger()
    turn(fresh)
    fresh.intents.on_run_to(9)
    turn(fresh)
    count = samples.PROMPT + 9
    head, attention = fresh.models.slices.head.request, fresh.models.slices.attention.request
    assert (head.start, head.stop, attention.start, attention.stop) == (0, count, 0, None)
    for view in (fresh.window.head, fresh.window.attention):
        assert view._map.visible_range == (0, count)
        assert view._map.is_loaded
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
    assert view._map.visible_range == (0, TOKENS)
    assert not view._map.is_loaded
    assert chip(view) == ("part of it is not loaded yet", "past")
    plot = view._map.plot_rect.toRect()
    shown = view._map.grab().toImage()
    ground = QColor(current_theme().panel)
    left = {shown.pixelColor(QPoint(plot.left() + x, plot.top() + 3)).name() for x in range(5, 60)}
    assert len(left) > 1, "not one flat ground"
    assert ground.name() in left
    engine.is_silent = False
    fresh.controller.requests.pictures.reset()
    turn(fresh)
    assert view._map.is_loaded
    assert chip(view)[1] == "live cache"


def test_following_the_newest_asks_for_the_newest(fresh: Shell, engine: FakeEngine) -> None:
    fresh.window.head._map.follow_newest()
    turn(fresh)
    fresh.intents.on_run_to(3)
    turn(fresh)
    head = fresh.models.slices.head.request
    assert (head.start, head.stop) == (TOKENS + 3 - 64, TOKENS + 3)
    assert fresh.window.head._map.is_loaded


# ---- the label says what is drawn --------------------------------------------------------------------------------


def test_the_wall_is_labelled_as_it_is_drawn(fresh: Shell, engine: FakeEngine) -> None:
    wall = fresh.window.wall
    assert wall._segments.choice == "K"
    engine.is_silent = True
    wall.choose("dK")
    turn(fresh)
    assert wall._segments.choice == "K"  # K is drawn, whatever is selected
    assert chip(wall) == (f"showing K of step {STEPS} · ΔK is on its way", "past")
    engine.is_silent = False
    fresh.controller.requests.pictures.reset()
    turn(fresh)
    assert engine.requests(WallRequest)[-1].change
    assert wall._segments.choice == "dK"
    assert chip(wall)[1] == "live cache"


def test_pictures_that_are_behind_say_so_and_name_one_step(fresh: Shell, engine: FakeEngine) -> None:
    engine.is_silent = True
    status = samples.status(STEPS + 12, num_tokens=TOKENS + 12, running=True)
    engine.emit(*(samples.step_record(STEPS + 1 + n) for n in range(12)), StateChanged(status))
    turn(fresh)
    assert fresh.models.timeline.latest.step == STEPS + 12
    window = fresh.window
    said = {chip(view) for view in (window.wall, window.head)}
    assert said == {(f"showing K of step {STEPS}", "past")}
    assert chip(window.attention) == (f"showing step {STEPS}", "past")


def test_a_pinned_head_is_asked_of_its_own_place(fresh: Shell, engine: FakeEngine) -> None:
    head, attention = fresh.window.head, fresh.window.attention
    for view in (head, attention):
        view._pin.click()
    fresh.models.selection.update(layer=5, kv_head=2, tensor="values")
    turn(fresh)
    engine.emit(samples.step_record(STEPS + 1))
    turn(fresh)
    asked, row = fresh.models.slices.head.request, fresh.models.slices.attention.request
    assert (asked.layer, asked.kv_head, asked.tensor, asked.num_tokens) == (0, 0, "keys", TOKENS + 1)
    assert (row.layer, row.step) == (0, STEPS + 1)
    assert np.isfinite(fresh.models.slices.head.low).all()


# ---- what keys do, and the list of the largest -------------------------------------------------------------------


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
    assert window.attention._map.visible_range == (38.5, 62.5)
    asked = engine.requests(AttentionRequest)[-1]
    assert (asked.start, asked.stop) == (38, 63)
    assert fresh.models.slices.attention.positions.tolist() == list(range(38, 63))
    window.actions_["view.reset"].trigger()
    turn(fresh)
    assert window.attention._map.visible_range == (0, TOKENS)
    assert engine.requests(AttentionRequest)[-1].stop is None
    assert window.head._map.visible_range == (0, TOKENS)  # the other map has a range of its own


def test_the_wall_names_the_farthest_value_of_both_tensors(fresh: Shell) -> None:
    wall, piece = fresh.window.wall, fresh.models.slices.wall
    assert wall._largest.text() == "max K L0 1.5× ▾"
    other = samples.magnitudes()
    largest = other.largest.copy()
    largest[4] = 4.2 * other.limit[4]
    fresh.models.slices.put(replace(piece, other_magnitudes=replace(other, largest=largest)))
    assert wall._largest.text() == "max V L4 4.2× ▾"


def test_the_list_of_the_largest_leads_to_each(fresh: Shell, engine: FakeEngine, qtbot: QtBot) -> None:
    assert not engine.requests(OutliersRequest)
    fresh.window.wall._largest.click()
    turn(fresh)
    fresh.window.actions_["view.outliers"].trigger()  # is there already
    (dialog,) = fresh.window.findChildren(OutliersDialog)
    asked = engine.requests(OutliersRequest)[-1]
    assert (asked.seq_id, asked.num_tokens, asked.step) == (0, TOKENS, STEPS)
    assert dialog.source_text == f"live cache · step {STEPS}"
    tree = dialog._tree
    headings = [tree.topLevelItem(n) for n in range(tree.topLevelItemCount())]
    assert [heading.childCount() for heading in headings] == [samples.LAYERS, samples.LAYERS + 1, 2]
    first = headings[1].child(0)
    words = [first.text(column) for column in range(4)]
    assert words == ["L4 · kv head 2 · channel 17", "-21.5", "5.6×", f"9 {samples.word(9).replace(' ', '·')}"]
    tree.setFocus()
    fresh.models.selection.update(tensor="values")
    tree.setCurrentItem(headings[0].child(5))
    assert fresh.models.selection.now.tensor == "keys"
    tree.setCurrentItem(first)  # by the arrow keys or the mouse: at once
    now = fresh.models.selection.now
    assert (now.layer, now.kv_head, now.position, now.tensor, now.channel) == (4, 2, 9, "values", 17)
    turn(fresh)
    assert engine.requests(HeadRequest)[-1].layer == 4
    tree.setCurrentItem(headings[2].child(1))
    now = fresh.models.selection.now
    assert (now.layer, now.kv_head, now.position, now.tensor, now.channel) == (3, 0, 7, "values", None)
    dialog.close()
    turn(fresh)
    assert not fresh.models.viewport.now.wants_outliers


def test_each_layer_tells_its_largest_value_and_what_is_clipped(fresh: Shell) -> None:
    lines = fresh.window.wall._canvas.accessibleDescription().splitlines()
    assert len(lines) == samples.LAYERS
    assert lines[3] == "L3: max |K| 6.75 · 1.5× the range ±4.5 · 0.50 % of the layer beyond it"
    piece = fresh.models.slices.wall
    far = samples.magnitudes()
    far.largest[2] = 41.0
    fresh.models.slices.put(replace(piece, magnitudes=far))
    assert fresh.window.wall._canvas._marks.times_range[2] == pytest.approx(41 / 4)
    assert "L2: max |K| 41 · 10× the range" in fresh.window.wall._canvas.accessibleDescription()


def test_another_model_and_a_rewind_leave_a_range_that_exists(fresh: Shell, engine: FakeEngine) -> None:
    zoomed(fresh)
    fresh.models.selection.update(step=60)
    fresh.intents.on_go_on_from_here()
    turn(fresh)
    count = samples.PROMPT + 60
    head = engine.requests(HeadRequest)[-1]
    assert (head.num_tokens, head.stop - head.start) == (count, 40)  # as close as before
    assert head.stop == count
    assert fresh.window.head._map.is_loaded
    other = samples.model_info("Other", shape=samples.geometry(layers=4))
    engine.emit(StateChanged(samples.status(60, num_tokens=count, model=other)))
    turn(fresh)
    assert fresh.models.viewport.now.head_range is None
    assert fresh.models.viewport.now.attention_range is None
    assert fresh.window.head._map.visible_range == (0, count)


def test_what_has_left_a_window_is_not_on_its_way(fresh: Shell, engine: FakeEngine) -> None:
    """A sliding layer holds positions from 90 on; 80 … 121 were asked for."""
    zoomed(fresh)
    view, piece = fresh.window.head, fresh.models.slices.head
    kept = slice(90 - piece.request.start, None)
    fresh.models.slices.put(replace(piece, low=piece.low[kept], high=piece.high[kept], positions=piece.positions[kept]))
    assert view._map.visible_range == (80.5, 120.5)
    assert view._map.is_loaded
    assert chip(view)[1] == "live cache"
    nothing = np.zeros((0, piece.low.shape[1]), np.float32)
    fresh.models.slices.put(replace(piece, low=nothing, high=nothing, positions=piece.positions[:0]))
    assert "have left this head's window" in view._empty.text()


@pytest.mark.parametrize("fresh", [(2560, 1440)], indirect=True)
def test_the_most_attended_tokens_stand_beside_their_heads_and_in_words(fresh: Shell) -> None:
    view, piece = fresh.window.attention, fresh.models.slices.attention
    assert view._tops.isVisible()
    assert [[one.position for one in row] for row in view._tops._rows] == piece.top_positions.tolist()
    lines = view._tops._lines([("12 abc ", "5.0 %")] * 5)
    assert sum(map(len, lines)) == 5
    words = view._map.accessibleDescription().split("; ")
    first = int(piece.top_positions[6, 1])
    share = percent(float(piece.top_weights[6, 1]))
    assert f"{first} {token_label(samples.word(first), 8)} {share}" in words[6]
    assert view._readout.text().startswith(f"head 0 → {piece.top_positions[0, 0]} ")
    assert "▼ sink: 0 Once takes" in view._detail.text()
    assert view._map._marks.flags == (0.5,)
