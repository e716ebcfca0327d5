"""The pictures of both sides: numbers, colours, swapping, blinking, what cannot be had."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPointF
from PySide6.QtGui import QKeySequence
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from app.draw.colormap import signed_index
from app.draw.format import brief
from app.draw.matrix import matrix_of
from app.kit.widgets import plain_tip
from app.panels.compare.view import BLINK, OVERLAY, SWAP, CompareMaps, CompareMapsState
from engine.wire.events import Failed
from engine.wire.pictures import WallRequest
from tests.app import samples
from tests.app.conftest import turn
from tests.app.panels.compare import desk as desk_module
from tests.app.panels.compare.desk import CompareDesk, field, pooled

pytestmark = pytest.mark.one_window


def test_the_exact_numbers_of_both_sides_stand_under_the_cursor(compared: CompareDesk) -> None:
    compared.show("head")
    compared.view.maps.maps["b"].hover_at(QPointF(6.5, 3.5))
    cell = 6 * samples.HEAD_DIM + 3  # of `[tokens, channels]`
    a, b = cell / 8, cell / 8 + 0.25
    where = f"layer 0 · head 0 · channel 3 · token 6 {samples.word(6).replace(' ', '·')}"
    assert compared.view.readout.text() == f"A {a}   B {b}   A − B -0.25   {where}"
    assert compared.view.maps.maps["difference"].hover == QPointF(6.5, 3.5)
    compared.view.maps.maps["b"].hover_at(None)
    assert compared.view.maps.maps["a"].hover is None
    assert not compared.view.readout.isEnabled()


def test_numbers_have_fewer_digits_where_the_exact_ones_do_not_fit(compared: CompareDesk) -> None:
    compared.show("head")
    view = compared.view
    view.maps.maps["b"].hover_at(QPointF(6.5, 3.5))
    exact = view.readout.text()
    least, most = view.readout.minimumWidth(), view.readout.maximumWidth()
    view.readout.setFixedWidth(view.readout.fontMetrics().horizontalAdvance(exact) - 1)
    view.maps.maps["b"].hover_at(QPointF(6.6, 3.5))
    view.readout.setMinimumWidth(least)
    view.readout.setMaximumWidth(most)
    cell = 6 * samples.HEAD_DIM + 3
    assert view.readout.text().startswith(f"A {brief(cell / 8)}   B {brief(cell / 8 + 0.25)}   A − B -0.250   layer 0")
    assert view.readout.toolTip() == plain_tip(exact)


def test_each_number_has_tokens_of_its_own_where_sides_pool_differently(compared: CompareDesk) -> None:
    sides = pooled(-1, 1, 0, 24, 6), pooled(-2, 2, 17, 24, 3), pooled(0.5, 0.5, 17, 24, 1)
    text = CompareMapsState(*sides, True, None, None).on_same_positions().reading(QPointF(18.5, 0.5), str)
    numbers = "A -1.0 … 1.0 (18…23)   B -2.0 … 2.0 (17…19)   A − B 0.5 (18)"
    assert text == f"{numbers}   layer 0 · head 0 · channel 0 · (tokens)"
    same = CompareMapsState(sides[0], sides[0], sides[0], True, None, None).on_same_positions()
    assert same.reading(QPointF(18.5, 0.5), str).endswith("channel 0 · tokens 18…23, extremes")


def test_the_selected_cell_is_told_where_the_cursor_is_elsewhere(compared: CompareDesk) -> None:
    compared.show("head")
    compared.models.selection.update(position=4, channel=2)
    assert compared.view.readout.text().startswith(f"A {(4 * samples.HEAD_DIM + 2) / 8}   B ")


def test_a_click_on_the_wall_selects_layer_head_and_token(compared: CompareDesk) -> None:
    shown = compared.view.maps.shown
    assert shown is not None
    row = shown.a.row_of(2, 3, None)
    assert row is not None
    compared.view.maps.picked.emit("a", QPointF(9.5, row + 0.5))
    now = compared.models.selection.now
    assert (now.layer, now.kv_head, now.position) == (2, 3, 9)


def test_a_click_on_attention_selects_the_kv_head_that_is_read(compared: CompareDesk) -> None:
    compared.show("attention")
    compared.view.maps.picked.emit("a", QPointF(2.5, 5.5))
    now = compared.models.selection.now
    assert (now.kv_head, now.position, now.channel) == (2, 2, None)
    assert compared.view.readout.text().startswith("A ")
    assert "query head" in compared.view.readout.text()


def test_both_sides_share_their_colours_and_the_difference_has_its_own(compared: CompareDesk) -> None:
    compared.show("head")
    captions = {name: label.text() for name, label in compared.view.maps.captions.items()}
    assert captions["a"].split(" · ")[-1] == captions["b"].split(" · ")[-1] != captions["difference"].split(" · ")[-1]
    assert captions["difference"] == "A − B · colours ±0.250"
    shown = compared.view.maps.shown
    assert shown is not None
    (limit,) = {float(limit) for limit in shown.limits}
    assert captions["a"].endswith(f"colours ±{brief(limit)}")
    values = field((24, samples.HEAD_DIM), "b")
    np.testing.assert_array_equal(compared.view.maps.maps["b"].image.image, signed_index(values.T / limit, 1.0))


def test_a_wall_has_a_range_of_colours_for_each_layer(qapp: QApplication) -> None:
    """Numbers of layer 1 are a hundredth of those of layer 0: both layers are drawn equally strong, in A, B and
    difference."""
    picture = samples.wall_picture(WallRequest(0, 20, 20, "keys", False, 10, 8))
    size = np.where(np.arange(len(picture.low)) == 0, 10, 0.1).astype(np.float32)[:, None, None, None]
    full = np.broadcast_to(size, picture.low.shape)
    a, b, difference = (matrix_of(replace(picture, low=full * part, high=full * part)) for part in (0.5, 1.0, -0.5))
    maps = CompareMaps(str)
    maps.show_pictures(CompareMapsState(a, b, difference, True, None, None))
    first = np.array([place.layer == 0 for place in a.places])
    np.testing.assert_allclose(maps.shown.limits, np.where(first, 10, 0.1))  # type: ignore[union-attr]
    for side, entry in {"a": 191, "b": 254, "difference": 0}.items():
        image = maps.maps[side].image.image
        assert abs(image[first].astype(int) - entry).max() <= 1
        assert abs(image[~first].astype(int) - entry).max() <= 1
    assert maps.captions["a"].text() == "A · colours per layer, ±0.100 to ±10.0"
    assert maps.captions["difference"].text() == "A − B · colours per layer, ±0.0500 to ±5.00"


def test_swap_shows_the_other_side_in_the_same_place(compared: CompareDesk) -> None:
    maps = compared.view.maps
    compared.view.displays.choose(SWAP)
    compared.answer()
    assert not maps.maps["b"].isVisible()
    assert maps.captions["a"].text().startswith("A · sequence 0")
    first = maps.maps["a"].image.image.copy()
    compared.shell.window.actions_["compare.flip"].trigger()
    assert maps.captions["a"].text().startswith("B · the same tokens in KIVI-2")
    assert (maps.maps["a"].image.image != first).any()
    compared.shell.window.actions_["compare.flip"].trigger()
    np.testing.assert_array_equal(maps.maps["a"].image.image, first)


def test_blink_alternates_both_sides_while_the_panel_is_visible(compared: CompareDesk) -> None:
    maps = compared.view.maps
    compared.view.displays.choose(BLINK)
    assert maps.blink.isActive()
    maps.blink.timeout.emit()
    assert maps.is_b
    maps.blink.timeout.emit()
    assert not maps.is_b
    compared.shell.window.arrange("learn")
    assert not maps.blink.isActive()


def test_overlay_is_the_mean_and_says_so(compared: CompareDesk) -> None:
    compared.show("head")
    compared.view.displays.choose(OVERLAY)
    compared.answer()
    maps, shown = compared.view.maps, compared.view.maps.shown
    assert shown is not None
    assert maps.captions["a"].text().startswith("Mean of A and B")
    mean = field((24, samples.HEAD_DIM), "a") + 0.125
    np.testing.assert_array_equal(maps.maps["a"].image.image, signed_index(mean.T / shown.limits[:, None], 1.0))
    assert maps.maps["difference"].isVisible()


def test_overlay_of_pooled_cells_is_of_their_extremes_and_says_so(compared: CompareDesk) -> None:
    compared.view.displays.choose(OVERLAY)
    maps = compared.view.maps
    sides = pooled(-3, 3.5, 0, 12, 6), pooled(-3.5, 3, 0, 12, 6), pooled(0.5, 0.5, 0, 12, 6)
    maps.show_pictures(CompareMapsState(*sides, True, None, None))
    assert maps.captions["a"].text().startswith("Means of the extremes of A and B")
    assert (maps.maps["a"].image.image > 230).all()


def test_zoom_is_that_of_the_head_everywhere(compared: CompareDesk) -> None:
    compared.show("head")
    compared.view.maps.maps["difference"].zoom_to(10, 8)
    wanted = compared.models.viewport.now.head_range
    assert wanted is not None
    assert (wanted.low, wanted.high) == (6.5, 14.5)
    turn(compared.shell)
    assert {heatmap.visible_range for heatmap in compared.view.maps.maps.values()} == {(6.5, 14.5)}
    compared.view.reset_view()
    assert compared.models.viewport.now.head_range is None


def test_pictures_of_another_step_say_so(compared: CompareDesk) -> None:
    assert compared.view.provenance_label.text == "difference"
    compared.models.selection.update(step=5)
    assert "showing" in compared.view.provenance_label.text
    compared.answer()
    turn(compared.shell)
    compared.answer()
    assert compared.view.provenance_label.text == "difference"
    shown = compared.view.maps.shown
    assert shown is not None
    assert shown.a.whole == (0, samples.PROMPT + 5)


def test_pictures_that_cannot_be_had_say_why_until_others_come(compared: CompareDesk) -> None:
    compared.view.choose("attention")
    turn(compared.shell, 2)
    last = compared.asked()[-1]
    compared.engine.emit(Failed("A snapshot keeps no attention: look at its rows.", reply_to=last.id))
    turn(compared.shell, 2)
    assert compared.view.why.text() == "A snapshot keeps no attention: look at its rows."
    assert compared.view.why.isVisible()
    assert compared.models.status.failure == ""
    compared.show("head")
    assert compared.view.maps.isVisible()


def test_hidden_pictures_are_not_asked_for(compared: CompareDesk) -> None:
    assert compared.models.viewport.now.compared is not None
    compared.shell.window.arrange("learn")
    assert compared.models.viewport.now.compared is None


def test_the_x_key_in_a_picture_swaps(compared: CompareDesk) -> None:
    heatmap = compared.view.maps.maps["a"]
    compared.shell.window.activateWindow()
    heatmap.setFocus()
    turn(compared.shell)
    QTest.keySequence(heatmap, QKeySequence("X"))
    assert compared.view.displays.currentData() == SWAP
    assert compared.view.maps.is_b


def test_numbers_that_would_all_read_zero_are_not_written(
    compared: CompareDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell has room for one decimal: 0.0 in a strongly coloured cell would be false."""
    shown: list[bool] = []
    heatmap = compared.view.maps.maps["difference"]
    show = heatmap.show_matrix

    def note(*given: Any, has_numbers: bool) -> None:
        shown.append(has_numbers)
        show(*given, has_numbers=has_numbers)

    monkeypatch.setattr(heatmap, "show_matrix", note)
    compared.models.selection.update(kv_head=3)
    compared.show("head")
    assert shown[-1], "they differ by 0.25"
    monkeypatch.setattr(desk_module, "field", lambda shape, _side: np.full(shape, 0.01, np.float32))
    compared.show("wall")
    assert not shown[-1]
