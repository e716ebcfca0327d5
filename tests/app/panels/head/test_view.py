"""One head in a real widget: its image, zoom, colour range, marks and the value under the cursor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyqtgraph as pg
import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.draw.colormap import NON_FINITE, magnitude_index, signed_index
from app.draw.grid import rows_of
from app.draw.matrix import matrix_of
from app.models import Models
from app.panels.head import FIXED, PER_LAYER, HeadView, readout
from engine.spec.edit import Rows as EditRows
from engine.wire.pictures import HeadRequest, WallRequest
from tests.app import samples
from tests.app.mouse import turn_wheel
from tests.app.painted import shapes
from tests.app.panels.recorded import STEPS, TOKENS, give_pictures, head_picture, recorded_models


@pytest.fixture
def models(qapp: QApplication) -> Models:
    return recorded_models()


@pytest.fixture
def head(models: Models, show: Callable[..., Any]) -> HeadView:
    view = show(HeadView(models))
    give_pictures(models)
    return view


def test_the_tile_reaches_the_image_as_bytes(head: HeadView, models: Models) -> None:
    picture = models.pictures.head
    assert picture is not None
    image = head.map.image.image
    assert image.dtype == np.uint8
    assert image.flags.c_contiguous
    assert image.shape == (samples.HEAD_DIM, TOKENS)
    assert (image == signed_index(np.ascontiguousarray(picture.low.T), picture.limit)).all()
    assert head.map.image.autoDownsample is False


def test_the_title_says_which_head_and_whom_it_serves(head: HeadView) -> None:
    assert head.title_label.text() == "Layer 3 · kv head 1 · K"
    assert "serves heads 2, 3" in head.detail.text()


def test_magnitudes_are_drawn_from_zero_up(head: HeadView, models: Models) -> None:
    assert "range ±" in head.range.text()
    picture = models.pictures.head
    sizes = np.abs(picture.low)
    request = replace(picture.request, lens="keys-norm")
    models.pictures.put(replace(picture, request=request, low=sizes, high=sizes, tensor_label="|K|"))
    assert "range 0–" in head.range.text()
    assert (head.map.image.image == magnitude_index(np.ascontiguousarray(sizes.T), picture.limit)).all()
    assert head.bar.accessibleName().startswith("Colour range 0–")


def test_a_map_of_tokens_by_tokens_names_them_on_both_axes(head: HeadView, models: Models) -> None:
    picture = models.pictures.head
    assert f"{samples.word(0)} 0" not in [tick.text for tick in head.map.framed().rows]
    request = replace(picture.request, lens="attention-map")
    square = np.tril(np.full((TOKENS, TOKENS), 0.25, np.float32))
    models.pictures.put(replace(picture, request=request, low=square, high=square, tensor_label="attention map"))
    assert (matrix_of(models.pictures.head).is_gone == (square.T == 0)).all(), "tokens behind their query are hatched"
    head.map.hover_at(QPointF(4.5, 9.5))
    assert head.readout.text().startswith("attention map[3, 1, 4, 9]  ")
    assert head.readout.text().endswith("   not read: behind the query")
    names = [shape.text for shape in shapes(head.map) if shape.text]
    assert any(name.endswith(" 0") and len(name) > 2 for name in names), names
    half = square[: TOKENS // 2, : TOKENS // 2]
    models.pictures.put(
        replace(models.pictures.head, low=half, high=half, positions=picture.positions[::2][: len(half)],
                tokens_per_column=2, values_per_row=2)
    )  # fmt: skip
    rows = [int(tick.text.split()[-1]) for tick in head.map.framed().rows]
    assert rows[-1] > len(half), "two tokens share a row"
    cell = matrix_of(models.pictures.head).at(4.0, 3.0)
    assert cell is not None
    assert readout(models.pictures.head, cell).startswith("attention map[3, 1, 4…5, 6…7]")


def test_a_click_selects_the_token_under_it(head: HeadView, models: Models, qtbot: QtBot) -> None:
    plot = head.map.plot_rect
    x = plot.left() + (20.5 / TOKENS) * plot.width()
    qtbot.mouseClick(head.map, Qt.MouseButton.LeftButton, pos=QPoint(int(x), int(plot.center().y())))
    assert models.selection.now.position == 20


def test_the_value_under_the_cursor_is_exact(head: HeadView, models: Models) -> None:
    picture = models.pictures.head
    assert picture is not None
    head.bar.dragged.emit(1e-3)  # whatever the colours do
    head.map.hover_at(QPointF(9.5, 4.5))
    assert head.readout.text().startswith("K[3, 1, 9, 4] = " + str(picture.low[9, 4]))
    assert "In brackets: layer, kv head, token, channel" in head.readout.toolTip()
    fresh = head_picture()
    models.pictures.put(replace(fresh, low=fresh.low + 1, high=fresh.low + 1))
    assert head.readout.text().startswith("K[3, 1, 9, 4] = " + str(fresh.low[9, 4] + 1))  # the mouse has not moved
    head.map.hover_at(None)
    assert head.readout.text() == "point at a cell for its exact value"


def test_the_value_of_the_selected_cell_is_copied(head: HeadView, models: Models) -> None:
    told: list[str] = []
    head.message.connect(told.append)
    head.copy_value()
    assert told == ["Nothing is copied: Head shows no value of the selected cell"]
    models.selection.update(layer=3, kv_head=1)
    models.selection.update(position=9, channel=4)
    head.copy_value()
    picture = models.pictures.head
    assert picture is not None
    assert QGuiApplication.clipboard().text() == str(picture.low[9, 4])
    assert told[-1] == "Copied the value of K[3, 1, 9, 4]"


def test_the_wheel_zooms_where_the_cursor_is_and_home_shows_all(head: HeadView, models: Models, qtbot: QtBot) -> None:
    wheel(head.map, 20.5, 5)
    low, high = head.map.visible_range
    assert high - low < TOKENS / 2
    assert low < 20.5 < high
    wanted = models.viewport.now.head_range
    assert wanted is not None
    assert (wanted.low, wanted.high) == (low, high)
    start, stop = rows_of(wanted, TOKENS)
    assert start <= low < high <= stop
    give_pictures(models)
    assert head.map.image.image.shape[1] == stop - start
    qtbot.keyClick(head.map, Qt.Key.Key_Home)
    assert models.viewport.now.head_range is None
    assert head.map.visible_range == (0, TOKENS)


def test_f_follows_the_newest_token(models: Models, show: Callable[..., Any], qtbot: QtBot) -> None:
    head = show(HeadView(models))
    give_pictures(models)
    wheel(head.map, 5, 4)
    span = head.map.visible_range[1] - head.map.visible_range[0]
    qtbot.keyClick(head.map, Qt.Key.Key_F)
    assert head.map.visible_range[1] == TOKENS
    models.timeline.append([samples.step_record(STEPS + 1)])
    give_pictures(models)
    assert head.map.visible_range == pytest.approx((TOKENS + 1 - span, TOKENS + 1))
    assert head.map.is_loaded  # the newest rows were asked for, too


def wheel(heat_map: Any, position: float, notches: int) -> None:
    plot = heat_map.plot_rect
    low, high = heat_map.visible_range
    at = QPointF(plot.left() + (position - low) / (high - low) * plot.width(), plot.center().y())
    turn_wheel(heat_map, at, notches)


def test_a_token_that_is_selected_elsewhere_comes_into_sight(head: HeadView, models: Models) -> None:
    head.map.zoom_to(2, 4)
    span = head.map.visible_range
    models.selection.update(position=3)
    assert head.map.visible_range == span, "it was in sight"
    far = models.timeline.num_tokens(0) - 1
    models.selection.update(position=far)
    low, high = head.map.visible_range
    assert low <= far < high
    assert high - low == span[1] - span[0]
    head.reset_view()
    models.selection.update(position=0)
    assert not head.map.is_zoomed


def test_the_words_of_the_range_give_way_where_the_panel_becomes_narrow(head: HeadView) -> None:
    for width, is_told in ((900, True), (500, False), (900, True)):
        head.resize(width, 300)
        QApplication.processEvents()
        assert ("99.5 %" in head.range.text()) == is_told


def test_dragging_the_range_changes_colours_and_c_fits_them_again(head: HeadView, models: Models, qtbot: QtBot) -> None:
    picture = models.pictures.head
    assert picture is not None
    head.bar.dragged.emit(picture.limit / 10)
    assert head.bar.limit == pytest.approx(picture.limit / 10)
    assert (head.map.image.image == 254).mean() > 0.2
    qtbot.keyClick(head.map, Qt.Key.Key_C)
    assert head.bar.limit == picture.limit
    head.fit_colors()


@pytest.mark.parametrize("tensor", ["keys", "values"])
def test_the_layer_range_is_that_of_all_its_rows(models: Models, show: Callable[..., Any], tensor: str) -> None:
    """The range comes with the head's own slice: no wall is needed, and no range of another tensor can be used."""
    head = show(HeadView(models))
    give_pictures(models)
    other = samples.wall_picture(WallRequest(0, TOKENS, 0, "values", True, 40, 16))
    models.pictures.put(replace(other, magnitudes=samples.magnitudes(12)))
    picture = samples.head_picture(HeadRequest(0, TOKENS, tensor, 3, 1, 0, TOKENS, 512))  # type: ignore[arg-type]
    models.pictures.put(picture)
    action = next(a for a in head.scopes.actions() if a.data() == PER_LAYER)
    action.trigger()
    assert "per layer" in head.range.text()
    assert head.bar.limit == samples.magnitudes().limit[3] == 4.5
    head.fit_colors()
    assert "per layer" not in head.range.text()
    assert head.bar.limit == picture.limit


def test_a_fixed_range_is_the_one_that_was_shown_and_stays(head: HeadView, models: Models) -> None:
    picture = models.pictures.head
    assert picture is not None
    next(action for action in head.scopes.actions() if action.data() == FIXED).trigger()
    assert head.bar.limit == picture.limit
    models.pictures.put(replace(picture, low=3 * picture.low, high=3 * picture.high, limit=3 * picture.limit))
    assert head.bar.limit == picture.limit


def test_an_area_of_some_channels_reaches_from_the_first_of_them_to_the_last(head: HeadView, models: Models) -> None:
    last = samples.HEAD_DIM - 1
    for channels, rows in (((2, 3, 5), (2, 6)), ((last,), (last, last + 1)), (None, (0, last + 1))):
        models.selection.update(area=EditRows(3, 7, (3,), (1,), channels, "keys"))
        area = head.state.area
        assert (area.start, area.stop, area.first, area.last) == (3, 7, *rows)
    models.selection.update(area=EditRows(3, 7, (2,), (1,)))
    assert head.state.area is None, "it is of another layer"


def test_a_click_on_pooled_tokens_selects_the_first_of_them(
    models: Models, show: Callable[..., Any], qtbot: QtBot
) -> None:
    head = show(HeadView(models))
    models.pictures.put(head_picture(columns=9))
    picture = models.pictures.head
    assert picture is not None
    assert picture.tokens_per_column == 4
    plot = head.map.plot_rect
    x = plot.left() + (22.5 / TOKENS) * plot.width()  # the third of the tokens 20 … 23
    qtbot.mouseClick(head.map, Qt.MouseButton.LeftButton, pos=QPoint(int(x), int(plot.center().y())))
    assert models.selection.now.position == 20
    assert head.map.framed().note == "largest of 4 tokens"


def test_a_selected_channel_is_marked_and_read_until_another_head_is_chosen(head: HeadView, models: Models) -> None:
    models.selection.update(position=9, channel=4)
    picture = models.pictures.head
    assert picture is not None
    assert head.map.marks.selected_row == 4
    assert head.readout.text().startswith("K[3, 1, 9, 4] = " + str(picture.low[9, 4]))
    assert "In brackets: layer, kv head, token, channel" in head.readout.toolTip()
    models.selection.update(kv_head=2)
    assert models.selection.now.channel is None
    assert head.map.marks.selected_row is None


def test_the_arrows_move_the_range_by_a_tenth(head: HeadView, qtbot: QtBot) -> None:
    limit = head.bar.limit
    qtbot.keyClick(head.bar, Qt.Key.Key_Up)
    assert head.bar.limit == pytest.approx(limit * 1.1)
    qtbot.keyClick(head.bar, Qt.Key.Key_Down)
    qtbot.keyClick(head.bar, Qt.Key.Key_Down)
    assert head.bar.limit == pytest.approx(limit / 1.1)


def test_what_is_not_a_number_is_loud_marked_and_counted(models: Models, show: Callable[..., Any]) -> None:
    head = show(HeadView(models))
    picture = head_picture()
    low = picture.low.copy()
    low[7, 3], low[8, 3] = np.nan, np.inf
    models.pictures.put(replace(picture, low=low, high=low, num_nan=3, num_inf=1))
    assert head.map.image.image[3, 7] == head.map.image.image[3, 8] == NON_FINITE
    assert head.map.marks.alarms == (7.5, 8.5)
    assert "3 NaN, 1 Inf" in head.detail.text()


def test_a_picture_of_another_step_never_looks_current(models: Models, show: Callable[..., Any]) -> None:
    head = show(HeadView(models), 900)
    give_pictures(models)
    models.selection.update(step=5)
    assert head.provenance_label.text == f"showing K of step {STEPS} · step 5 is on its way"
    assert head.provenance_label.kind == "past"
    give_pictures(models)
    assert head.provenance_label.text == "step 5"
    assert head.provenance_label.whole == "live cache · cpu f32 · step 5 · looking back"
    assert head.provenance_label.kind == "past"
    assert head.map.image.image.shape[1] == samples.PROMPT + 5
    models.selection.update(step=None)
    give_pictures(models)
    assert head.provenance_label.kind == "live cache"


def test_a_pinned_head_stays(head: HeadView, models: Models) -> None:
    head.pin_button.click()
    models.selection.update(layer=5, kv_head=0)
    assert models.viewport.now.head_place == (3, 1, "keys")
    head.pin_button.click()
    assert models.viewport.now.head_place is None


def test_a_slice_without_rows_says_why(models: Models, show: Callable[..., Any]) -> None:
    head = show(HeadView(models))
    empty = np.zeros((0, 0), np.float32)
    picture = replace(head_picture(), low=empty, high=empty, positions=np.zeros(0, np.int64), note="A recurrent state.")
    models.pictures.put(picture)
    assert head.empty.text() == "A recurrent state."
    assert head.provenance_label.text == ""


def test_the_image_of_a_map_is_what_pyqtgraph_makes_of_it(models: Models, show: Callable[..., Any]) -> None:
    head = show(HeadView(models))
    give_pictures(models)
    image = head.map.image
    image.setImage(np.arange(256, dtype=np.uint8).reshape(8, 32), levels=(0, 255), autoLevels=False)
    image.render()
    own, size = image.qimage, (image.qimage.width(), image.qimage.height())
    pg.ImageItem.render(image)
    assert size == (32, 8)
    assert own == image.qimage.convertToFormat(own.format())
