"""Pictures are as fine as their pixels, and their labels name what is drawn and of which step it is."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPointF
from pytestqt.qtbot import QtBot

from app.dialogs.outliers import OutliersDialog
from app.draw.format import percent, token_label
from app.shell import Shell
from engine.wire.events import StateChanged
from engine.wire.pictures import (
    HeadRequest,
    OutliersRequest,
    WallRequest,
)
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.painted import shapes
from tests.app.panels.conftest import STEPS, TOKENS, chip

# ---- as sharp as its pixels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fresh", [(1280, 800), (1600, 1000), (2560, 1440)], indirect=True)
def test_after_a_fresh_start_a_token_with_two_pixels_has_a_column_of_its_own(fresh: Shell) -> None:
    window = fresh.window
    assert fresh.models.timeline.num_tokens(0) == TOKENS
    for view, piece in ((window.head, fresh.models.pictures.head), (window.attention, fresh.models.pictures.attention)):
        assert piece is not None
        pixels = view.map.plot_rect.width()
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
                assert columns == view.map.num_columns, layout
                assert columns <= view.map.plot_rect.width() < columns + 64, layout
            else:
                assert columns is None, layout


# ---- the label says what is drawn --------------------------------------------------------------------------------


def test_the_wall_is_labelled_as_it_is_drawn(fresh: Shell, engine: FakeEngine) -> None:
    wall = fresh.window.wall
    assert wall.segments.choice == "K"
    engine.is_silent = True
    wall.choose("dK")
    turn(fresh)
    assert wall.segments.choice == "K"  # K is drawn, whatever is selected
    assert chip(wall) == (f"showing K of step {STEPS} · ΔK is on its way", "past")
    engine.is_silent = False
    fresh.controller.requests.pictures.reset()
    engine.emit(StateChanged(engine.status))  # what is wanted is asked for with what arrives
    turn(fresh)
    assert engine.requests(WallRequest)[-1].change
    assert wall.segments.choice == "dK"
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
    assert chip(window.attention) == (f"showing attention of step {STEPS}", "past")
    briefs = {view.provenance_label.brief for view in (window.wall, window.head, window.attention)}
    assert briefs == {f"step {STEPS}"}, "what stands there where the whole does not fit"


def test_a_pinned_head_is_asked_of_its_own_place(fresh: Shell, engine: FakeEngine) -> None:
    head, attention = fresh.window.head, fresh.window.attention
    for view in (head, attention):
        view.pin_button.click()
    fresh.models.selection.update(layer=5, kv_head=2, lens="values")
    turn(fresh)
    engine.emit(samples.step_record(STEPS + 1))
    turn(fresh)
    asked, row = fresh.models.pictures.head.request, fresh.models.pictures.attention.request
    assert (asked.layer, asked.kv_head, asked.lens, asked.num_tokens) == (0, 0, "keys", TOKENS + 1)
    assert (row.layer, row.step) == (0, STEPS + 1)
    assert np.isfinite(fresh.models.pictures.head.low).all()


# ---- the largest values and the most attended tokens -----------------------------------------------------------------


def test_the_wall_names_the_farthest_value_of_both_tensors(fresh: Shell) -> None:
    wall, piece = fresh.window.wall, fresh.models.pictures.wall
    assert wall.largest.text() == "max K L0 1.5× ▾"
    other = samples.magnitudes()
    largest = other.largest.copy()
    largest[4] = 4.2 * other.limit[4]
    fresh.models.pictures.put(replace(piece, other_magnitudes=replace(other, largest=largest)))
    assert wall.largest.text() == "max V L4 4.2× ▾"


def test_the_list_of_the_largest_leads_to_each(fresh: Shell, engine: FakeEngine, qtbot: QtBot) -> None:
    assert not engine.requests(OutliersRequest)
    fresh.window.wall.largest.click()
    turn(fresh)
    fresh.window.actions_["view.outliers"].trigger()  # is there already
    (dialog,) = fresh.window.findChildren(OutliersDialog)
    asked = engine.requests(OutliersRequest)[-1]
    assert (asked.seq_id, asked.num_tokens, asked.step) == (0, TOKENS, STEPS)
    assert dialog.source.text() == f"live cache · step {STEPS}"
    tree = dialog.tree
    headings = [tree.topLevelItem(n) for n in range(tree.topLevelItemCount())]
    assert [heading.childCount() for heading in headings] == [samples.LAYERS, samples.LAYERS + 1, 2]
    first = headings[1].child(0)
    words = [first.text(column) for column in range(4)]
    assert words == ["L4 · kv head 2 · channel 17", "-21.50", "5.6×", f"9 {samples.word(9).replace(' ', '·')}"]
    tree.setFocus()
    fresh.models.selection.update(lens="values")
    tree.setCurrentItem(headings[0].child(5))
    assert fresh.models.selection.now.lens == "keys"
    tree.setCurrentItem(first)  # by the arrow keys or the mouse: at once
    now = fresh.models.selection.now
    assert (now.layer, now.kv_head, now.position, now.lens, now.channel) == (4, 2, 9, "values", 17)
    turn(fresh)
    assert engine.requests(HeadRequest)[-1].layer == 4
    tree.setCurrentItem(headings[2].child(1))
    now = fresh.models.selection.now
    assert (now.layer, now.kv_head, now.position, now.lens, now.channel) == (3, 0, 7, "values", None)
    dialog.close()
    turn(fresh)
    assert not fresh.models.viewport.now.wants_outliers


def test_each_layer_tells_its_largest_value_and_what_is_clipped(fresh: Shell) -> None:
    fresh.window.wall.describe_now()
    lines = fresh.window.wall.canvas.accessibleDescription().splitlines()
    assert len(lines) == samples.LAYERS
    assert lines[3] == "L3: max |K| 6.75 · 1.5× the range ±4.50 · 0.50 % of the layer beyond it"
    piece = fresh.models.pictures.wall
    far = samples.magnitudes()
    far.largest[2] = 41.0
    fresh.models.pictures.put(replace(piece, magnitudes=far))
    assert fresh.window.wall.canvas.marks.times_range[2] == pytest.approx(41 / 4)
    fresh.window.wall.describe_now()
    assert "L2: max |K| 41.0 · 10× the range" in fresh.window.wall.canvas.accessibleDescription()


@pytest.mark.parametrize("fresh", [(2560, 1440)], indirect=True)
def test_the_most_attended_tokens_stand_beside_their_heads_and_in_words(fresh: Shell) -> None:
    view, piece = fresh.window.attention, fresh.models.pictures.attention
    assert view.tops.isVisible()
    assert [[one.position for one in row] for row in view.tops.rows] == piece.top_positions.tolist()
    shares = [shape.text for shape in shapes(view.tops) if "%" in shape.text]
    assert shares == [percent(one.weight) for row in view.tops.rows for one in row]
    view.describe_now()
    words = view.map.accessibleDescription().split("; ")
    first = int(piece.top_positions[6, 1])
    share = percent(float(piece.top_weights[6, 1]))
    assert f"{first} {token_label(samples.word(first), 8)} {share}" in words[6]
    assert view.readout.text().startswith(f"L0 head 0 → {piece.top_positions[0, 0]} ")
    assert view.readout.text().count("(sink)") == 1, "the flag above the picture is explained below it"
    assert view.title_label.text() == "Attention · L0"
    sink = "▼ attention sink: 0 Once takes 50.1 % in the mean of heads"
    assert sink in view.detail.text()
    view.tell(QPointF(0.5, 0.5))
    assert sink in view.map.toolTip()
    view.tell(QPointF(5.5, 0.5))
    assert "sink" not in view.map.toolTip()
    assert view.map.marks.flags == (0.5,)
