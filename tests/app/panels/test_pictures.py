"""The pictures in real widgets: data reaches the image, clicks select, nothing repaints when nothing changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyqtgraph as pg
import pytest
from msgspec.structs import replace
from PySide6.QtCore import QEvent, QObject, QPoint, QPointF, Qt
from PySide6.QtGui import QImage, QPaintEvent, QRegion, QWheelEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from app.draw.attention import LINEAR, LOG, PER_HEAD, attention_indices
from app.draw.colormap import NON_FINITE, signed_index
from app.draw.format import byte_size
from app.draw.token_range import rows_of
from app.kit.panel import Panel
from app.kit.theme import LIGHT, apply_theme
from app.kit.view import View
from app.models import Models
from app.panels.attention.view import AttentionView
from app.panels.bytes.view import BytesView
from app.panels.head.view import FIXED, PER_LAYER, HeadView
from app.panels.inspector.view import InspectorView
from app.panels.next_token.view import NextTokenView
from app.panels.timings.view import TimingsView
from app.panels.wall.draw import WallRow
from app.panels.wall.view import WallView
from engine.wire.commands import AttentionRequest, HeadRequest, RowRequest, WallRequest
from engine.wire.records import NonFinite
from engine.wire.slices import HeadSlice
from tests.app import samples

VIEWS: tuple[type[Any], ...] = (
    WallView, HeadView, AttentionView, NextTokenView, TimingsView, BytesView, InspectorView,
)  # fmt: skip
PROVENANCES = {view: "live cache" if view in (WallView, HeadView, AttentionView) else "recorded" for view in VIEWS}
STEPS = 30
TOKENS = STEPS + samples.PROMPT


class Regions(QObject):
    """What is painted of a widget."""

    def __init__(self, widget: QWidget) -> None:
        super().__init__(widget)
        self._found = QRegion()
        QApplication.processEvents()
        widget.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QPaintEvent):
            self._found += event.region()
        return False

    def take(self) -> QRegion:
        """All since the last time."""
        QApplication.processEvents()
        found, self._found = self._found, QRegion()
        return found


@pytest.fixture
def models(qapp: QApplication) -> Models:
    found = Models()
    found.status.set(samples.status(STEPS, num_tokens=TOKENS))
    found.timeline.append(samples.story(STEPS))
    found.selection.update(layer=3, kv_head=1, position=13)
    return found


@pytest.fixture
def show(qtbot: QtBot) -> Iterator[Callable[..., Any]]:
    def shown(view: QWidget, width: int = 720, height: int = 330) -> QWidget:
        qtbot.addWidget(view)
        view.resize(width, height)
        view.show()
        QApplication.processEvents()
        return view

    return shown


def feed(models: Models) -> None:
    """Answer what the views asked for, as the engine would."""
    now, wanted = models.selection.now, models.viewport.now
    record = models.timeline.at(now.step)
    assert record is not None
    count = record.sequences[0].num_tokens
    if wanted.wall_size is not None:
        models.slices.put(
            samples.wall_slice(WallRequest(0, count, count - 1, now.tensor, now.change, *wanted.wall_size))
        )
    if wanted.head_columns is not None:
        start, stop = rows_of(wanted.head_range, count)
        models.slices.put(head_slice(start, stop, count, wanted.head_columns))
    if wanted.attention_columns is not None:
        start, stop = rows_of(wanted.attention_range, count)
        request = AttentionRequest(0, record.step, now.layer, wanted.attention_columns, start, stop)
        models.slices.put(samples.attention_slice(request, count))
    if wanted.wants_row and now.position is not None:
        models.slices.put(samples.row_slice(RowRequest(0, count, now.position)))
    QApplication.processEvents()


def head_slice(start: int = 0, stop: int = TOKENS, count: int = TOKENS, columns: int = 512) -> HeadSlice:
    piece = samples.head_slice(HeadRequest(0, count, "keys", 3, 1, start, stop, columns))
    return replace(piece, tensor_label="K")


# ---- all of them -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view_type", VIEWS)
def test_a_view_of_nothing_says_what_would_appear(view_type: type[Any], show: Callable[..., Any]) -> None:
    view = show(view_type(Models()))
    assert view._empty.isVisible()
    assert len(view._empty.text()) > 20


@pytest.mark.parametrize("view_type", VIEWS)
def test_a_view_shows_its_source_and_step(view_type: type[Any], models: Models, show: Callable[..., Any]) -> None:
    view = show(view_type(models))
    feed(models)
    assert not view._empty.isVisible()
    source = view._provenance
    assert source.text == PROVENANCES[view_type]
    assert source.kind == PROVENANCES[view_type]
    assert source.whole.endswith(f"step {STEPS}")
    models.selection.update(step=20)
    feed(models)
    assert source.text == PROVENANCES[view_type], "two words, at any step"
    assert source.kind == "past", "what is not of now is amber"
    assert source.whole.endswith("step 20 · looking back")


@pytest.mark.parametrize("view_type", VIEWS)
def test_another_theme_gives_another_picture(
    qapp: QApplication, view_type: type[Any], models: Models, show: Callable[..., Any]
) -> None:
    view = show(view_type(models))
    feed(models)
    dark = view.grab().toImage()
    apply_theme(qapp, LIGHT)
    QApplication.processEvents()
    light = view.grab().toImage()
    assert dark.pixelColor(4, 40).lightness() < 60
    assert light.pixelColor(4, 40).lightness() > 200
    assert dark != light


@pytest.mark.parametrize("view_type", VIEWS)
def test_the_same_state_is_not_painted_twice(view_type: type[Any], models: Models, show: Callable[..., Any]) -> None:
    view = show(view_type(models))
    feed(models)
    paints = Paints(view)
    refresh = view.refresh if isinstance(view, View) else view._refresh
    refresh()
    refresh()
    QApplication.processEvents()
    assert paints.count == 0


@pytest.mark.parametrize("view_type", VIEWS)
def test_a_hidden_view_asks_for_nothing_and_draws_nothing(
    view_type: type[Any], models: Models, show: Callable[..., Any]
) -> None:
    view = show(view_type(models))
    view.hide()
    wanted = models.viewport.now
    assert (wanted.wall_size, wanted.head_columns, wanted.attention_columns, wanted.wants_row) == (None,) * 3 + (False,)
    paints = Paints(view)
    models.timeline.append([samples.step_record(STEPS + 1)])
    models.slices.put(head_slice())
    QApplication.processEvents()
    assert paints.count == 0


@pytest.mark.parametrize("view_type", VIEWS)
@pytest.mark.parametrize("size", [(150, 90), (2400, 1400)])
def test_a_view_can_be_very_small_and_very_large(
    view_type: type[Any], size: tuple[int, int], models: Models, show: Callable[..., Any]
) -> None:
    view = show(view_type(models), *size)
    feed(models)
    assert not view.grab().toImage().isNull()


def test_hostile_token_texts_are_shown_as_they_are(models: Models, show: Callable[..., Any]) -> None:
    record = samples.step_record(STEPS + 1)
    part = record.sequences[0]
    candidates = (replace(part.candidates[0], text="<b>\x00\u202e</b>"), *part.candidates[1:])
    part = replace(part, texts=("\ud800<img src=x>\n",), candidates=candidates)
    models.timeline.append([replace(record, sequences=(part,))])
    models.selection.update(position=None)
    inspector = show(InspectorView(models))
    choices = show(NextTokenView(models))
    assert inspector._text.text() == "\\ud800<img·src=x>⏎"
    assert inspector._text.textFormat() == Qt.TextFormat.PlainText
    assert choices._list_model.bar(0).text == "<b>\\x00\\u202e</b>"


class Paints:
    """Counts paint events of a widget and everything in it."""

    def __init__(self, view: QWidget) -> None:
        from PySide6.QtCore import QEvent, QObject

        class Counter(QObject):
            def eventFilter(self, watched: QObject, event: QEvent) -> bool:
                if event.type() == QEvent.Type.Paint:
                    outer.count += 1
                return False

        outer = self
        self.count = 0
        QTest.qWait(20)  # what showing still owes
        self._counter = Counter()
        for widget in (view, *view.findChildren(QWidget)):
            widget.installEventFilter(self._counter)


# ---- one head ----------------------------------------------------------------------------------------------------


@pytest.fixture
def head(models: Models, show: Callable[..., Any]) -> HeadView:
    view = show(HeadView(models))
    feed(models)
    return view


def test_the_tile_reaches_the_image_as_bytes(head: HeadView, models: Models) -> None:
    piece = models.slices.head
    assert piece is not None
    image = head._map.image.image
    assert image.dtype == np.uint8
    assert image.flags.c_contiguous
    assert image.shape == (samples.HEAD_DIM, TOKENS)
    assert (image == signed_index(np.ascontiguousarray(piece.low.T), piece.limit)).all()
    assert head._map.image.autoDownsample is False


def test_the_title_says_which_head_and_whom_it_serves(head: HeadView) -> None:
    assert head._title.text() == "Layer 3 · kv head 1 · K"
    assert "serves heads 2, 3" in head._detail.text()


def test_a_click_selects_the_token_under_it(head: HeadView, models: Models, qtbot: QtBot) -> None:
    plot = head._map.plot_rect
    x = plot.left() + (20.5 / TOKENS) * plot.width()
    qtbot.mouseClick(head._map, Qt.MouseButton.LeftButton, pos=QPoint(int(x), int(plot.center().y())))
    assert models.selection.now.position == 20


def test_the_value_under_the_cursor_is_exact(head: HeadView, models: Models) -> None:
    piece = models.slices.head
    assert piece is not None
    said: list[str] = []
    head.hovered.connect(said.append)
    head._on_dragged(1e-3)  # whatever the colours do
    head._map._hover_at(QPointF(9.5, 4.5))
    assert said[-1].startswith("K[3, 1, 9, 4] = " + str(piece.low[9, 4]))
    fresh = head_slice()
    models.slices.put(replace(fresh, low=fresh.low + 1, high=fresh.low + 1))
    assert said[-1].startswith("K[3, 1, 9, 4] = " + str(fresh.low[9, 4] + 1))  # the mouse has not moved
    head._map._hover_at(None)
    assert said[-1] == ""


def test_the_wheel_zooms_where_the_cursor_is_and_home_shows_all(head: HeadView, models: Models, qtbot: QtBot) -> None:
    wheel(head._map, 20.5, 5)
    low, high = head._map.visible_range
    assert high - low < TOKENS / 2
    assert low < 20.5 < high
    wanted = models.viewport.now.head_range
    assert wanted is not None
    assert (wanted.low, wanted.high) == (low, high)
    start, stop = rows_of(wanted, TOKENS)
    assert start <= low < high <= stop
    feed(models)
    assert head._map.image.image.shape[1] == stop - start
    qtbot.keyClick(head._map, Qt.Key.Key_Home)
    assert models.viewport.now.head_range is None
    assert head._map.visible_range == (0, TOKENS)


def test_f_follows_the_newest_token(models: Models, show: Callable[..., Any], qtbot: QtBot) -> None:
    head = show(HeadView(models))
    feed(models)
    wheel(head._map, 5, 4)
    span = head._map.visible_range[1] - head._map.visible_range[0]
    qtbot.keyClick(head._map, Qt.Key.Key_F)
    assert head._map.visible_range[1] == TOKENS
    models.timeline.append([samples.step_record(STEPS + 1)])
    feed(models)
    assert head._map.visible_range == pytest.approx((TOKENS + 1 - span, TOKENS + 1))
    assert head._map.is_loaded  # the newest rows were asked for, too


def wheel(heat_map: Any, position: float, notches: int) -> None:
    plot = heat_map.plot_rect
    low, high = heat_map.visible_range
    at = QPointF(plot.left() + (position - low) / (high - low) * plot.width(), plot.center().y())
    event = QWheelEvent(
        at, at, QPoint(), QPoint(0, 120 * notches), Qt.MouseButton.NoButton, Qt.KeyboardModifier.NoModifier,
        Qt.ScrollPhase.NoScrollPhase, False,
    )  # fmt: skip
    heat_map.wheelEvent(event)


def test_dragging_the_range_changes_colours_and_c_fits_them_again(head: HeadView, models: Models, qtbot: QtBot) -> None:
    piece = models.slices.head
    assert piece is not None
    head._bar.dragged.emit(piece.limit / 10)
    assert head._scope == FIXED
    assert head._bar.limit == pytest.approx(piece.limit / 10)
    assert (head._map.image.image == 254).mean() > 0.2
    qtbot.keyClick(head._map, Qt.Key.Key_C)
    assert head._bar.limit == piece.limit
    head.fit_colors()


@pytest.mark.parametrize("tensor", ["keys", "values"])
def test_the_layer_range_is_that_of_all_its_rows(models: Models, show: Callable[..., Any], tensor: str) -> None:
    """It comes with the head, so that no wall is needed, and none of another tensor can be taken for it."""
    head = show(HeadView(models))
    feed(models)
    other = samples.wall_slice(WallRequest(0, TOKENS, 0, "values", True, 40, 16))
    models.slices.put(replace(other, magnitudes=samples.magnitudes(12)))
    piece = samples.head_slice(HeadRequest(0, TOKENS, tensor, 3, 1, 0, TOKENS, 512))  # type: ignore[arg-type]
    models.slices.put(piece)
    action = next(a for a in head._scopes.actions() if a.data() == PER_LAYER)
    action.trigger()
    assert "per layer" in head._range.text()
    assert head._bar.limit == samples.magnitudes().limit[3] == 4.5


def test_a_click_on_pooled_tokens_selects_the_first_of_them(
    models: Models, show: Callable[..., Any], qtbot: QtBot
) -> None:
    head = show(HeadView(models))
    models.slices.put(head_slice(columns=9))
    piece = models.slices.head
    assert piece is not None
    assert piece.tokens_per_column == 4
    plot = head._map.plot_rect
    x = plot.left() + (22.5 / TOKENS) * plot.width()  # the third of the tokens 20 … 23
    qtbot.mouseClick(head._map, Qt.MouseButton.LeftButton, pos=QPoint(int(x), int(plot.center().y())))
    assert models.selection.now.position == 20
    assert head._map._marks.note == "largest of 4 tokens"


def test_a_selected_channel_is_marked_and_read_until_another_head_is_chosen(head: HeadView, models: Models) -> None:
    models.selection.update(position=9, channel=4)
    piece = models.slices.head
    assert piece is not None
    assert head._map._marks.selected_row == 4
    assert head._readout.text().startswith("K[3, 1, 9, 4] = " + str(piece.low[9, 4]))
    models.selection.update(kv_head=2)
    assert models.selection.now.channel is None
    assert head._map._marks.selected_row is None


def test_the_arrows_move_the_range_by_a_tenth(head: HeadView, qtbot: QtBot) -> None:
    limit = head._bar.limit
    qtbot.keyClick(head._bar, Qt.Key.Key_Up)
    assert head._bar.limit == pytest.approx(limit * 1.1)
    qtbot.keyClick(head._bar, Qt.Key.Key_Down)
    qtbot.keyClick(head._bar, Qt.Key.Key_Down)
    assert head._bar.limit == pytest.approx(limit / 1.1)


def test_another_token_moves_the_mark_in_the_newest_row(models: Models, show: Callable[..., Any]) -> None:
    view = show(AttentionView(models))
    feed(models)
    assert view._map._marks.selected == (13, 14)
    models.selection.update(position=4)  # no new slice comes for that
    assert view._map._marks.selected == (4, 5)


def test_what_is_not_a_number_is_loud_marked_and_counted(models: Models, show: Callable[..., Any]) -> None:
    head = show(HeadView(models))
    piece = head_slice()
    low = piece.low.copy()
    low[7, 3], low[8, 3] = np.nan, np.inf
    models.slices.put(replace(piece, low=low, high=low, num_nan=3, num_inf=1))
    assert head._map.image.image[3, 7] == head._map.image.image[3, 8] == NON_FINITE
    assert head._map._marks.alarms == (7.5, 8.5)
    assert "3 NaN, 1 Inf" in head._detail.text()


def test_a_picture_of_another_step_never_looks_current(models: Models, show: Callable[..., Any]) -> None:
    head = show(HeadView(models), 900)
    feed(models)
    models.selection.update(step=5)
    assert head._provenance.text == f"showing K of step {STEPS} · step 5 is on its way"
    assert head._provenance.kind == "past"
    feed(models)
    assert head._provenance.text == "live cache"
    assert head._provenance.whole == "live cache · cpu f32 · step 5 · looking back"
    assert head._provenance.kind == "past"
    assert head._map.image.image.shape[1] == samples.PROMPT + 5
    models.selection.update(step=None)
    feed(models)
    assert head._provenance.kind == "live cache"


def test_a_pinned_head_stays(head: HeadView, models: Models) -> None:
    head._pin.click()
    models.selection.update(layer=5, kv_head=0)
    assert models.viewport.now.head_place == (3, 1, "keys")
    head._pin.click()
    assert models.viewport.now.head_place is None


def test_a_slice_without_rows_says_why(models: Models, show: Callable[..., Any]) -> None:
    head = show(HeadView(models))
    empty = np.zeros((0, 0), np.float32)
    piece = replace(head_slice(), low=empty, high=empty, positions=np.zeros(0, np.int64), note="A recurrent state.")
    models.slices.put(piece)
    assert head._empty.text() == "A recurrent state."
    assert head._provenance.text == ""


def test_the_image_of_a_map_is_what_pyqtgraph_makes_of_it(models: Models, show: Callable[..., Any]) -> None:
    head = show(HeadView(models))
    feed(models)
    image = head._map.image
    image.setImage(np.arange(256, dtype=np.uint8).reshape(8, 32), levels=(0, 255), autoLevels=False)
    image.render()
    own, size = image.qimage, (image.qimage.width(), image.qimage.height())
    pg.ImageItem.render(image)
    assert size == (32, 8)
    assert own == image.qimage.convertToFormat(own.format())


# ---- the wall ----------------------------------------------------------------------------------------------------


def test_the_wall_asks_for_thumbnails_of_its_own_size_and_draws_them(models: Models, show: Callable[..., Any]) -> None:
    wall = show(WallView(models))
    layout = wall._canvas.layout_now
    assert models.viewport.now.wall_size is not None
    assert models.viewport.now.wall_size[0] <= layout.tile_width
    assert models.viewport.now.wall_size[1] == layout.tile_height
    feed(models)
    image = wall._canvas.image
    assert (image.width(), image.height()) == (layout.width, layout.height)
    tile = layout.tile(2, 1)
    colors = {image.pixel(tile.x + 3 * i, tile.y + 2) for i in range(20)}
    assert len(colors) > 5


def test_what_is_painted_anew_of_a_wall_is_all_that_another_picture_changes(
    models: Models, show: Callable[..., Any]
) -> None:
    wall = show(WallView(models))
    canvas = wall._canvas
    feed(models)
    piece = models.slices.wall
    frame = QRegion(canvas.rect())

    def paint(picture: QImage, region: QRegion) -> QImage:
        there = region.translated(canvas.mapTo(wall, QPoint()))
        wall.render(picture, there.boundingRect().topLeft(), there)
        return picture

    for values in (-piece.low, np.where(piece.low > 0, np.float32(np.nan), piece.low)):
        picture = paint(QImage(wall.size(), QImage.Format.Format_RGB32), frame)
        before = picture.copy()
        models.slices.put(replace(piece, low=values, high=values))
        paint(picture, canvas._thumbnails)
        assert picture != before
        assert picture == paint(before.copy(), frame)
    assert not canvas._thumbnails.contains(QPoint(2, canvas.height() // 2)), "labels stand outside"


def test_another_word_beside_the_wall_paints_all_of_it(models: Models, show: Callable[..., Any]) -> None:
    wall = show(WallView(models))
    canvas = wall._canvas
    feed(models)
    painted = Regions(canvas)
    piece, far = models.slices.wall, samples.magnitudes()
    models.slices.put(replace(piece, low=-piece.high))
    assert painted.take() == canvas._thumbnails
    far.largest[2] = 41.0
    models.slices.put(replace(piece, magnitudes=far))
    assert painted.take() == QRegion(canvas.rect())


def test_a_wall_whose_rows_come_back_has_its_picture_again(models: Models, show: Callable[..., Any]) -> None:
    wall = show(WallView(models))
    feed(models)
    assert not wall._canvas.image.isNull()
    rows = wall._canvas._rows
    wall._canvas.set_rows(
        tuple(WallRow(row.layer, row.num_heads, drops_old=True) for row in rows)
    )  # as while a model is on its way
    wall._canvas.set_rows(rows)
    wall.show_again()
    assert not wall._canvas.image.isNull()


def test_a_click_on_the_wall_opens_the_head_at_its_token(
    models: Models, show: Callable[..., Any], qtbot: QtBot
) -> None:
    wall = show(WallView(models))
    feed(models)
    tile = wall._canvas.layout_now.tile(5, 2)
    pos = QPoint(tile.x + tile.width - 1, tile.y + 3)
    qtbot.mouseClick(wall._canvas, Qt.MouseButton.LeftButton, pos=pos)
    now = models.selection.now
    assert (now.layer, now.kv_head, now.position) == (5, 2, TOKENS - 1)


def test_the_segments_choose_tensor_and_change(models: Models, show: Callable[..., Any]) -> None:
    wall = show(WallView(models))
    wall.choose("dV")
    assert (models.selection.now.tensor, models.selection.now.change) == ("values", True)
    assert wall._segments.choice == "dV"  # nothing is drawn yet that could be something else
    feed(models)
    models.selection.update(tensor="keys", change=False)
    assert wall._segments.choice == "dV"  # still drawn
    feed(models)
    assert wall._segments.choice == "K"


def test_a_wall_taller_than_its_panel_scrolls_to_the_selected_layer(models: Models, show: Callable[..., Any]) -> None:
    shape = samples.geometry(layers=126, kv_heads=8)
    models.status.set(samples.status(STEPS, num_tokens=TOKENS, model=samples.model_info(shape=shape)))
    wall = show(WallView(models), 320, 160)
    assert wall._canvas.height() > wall._scroll.viewport().height()
    before = wall._canvas.selected_rect()
    assert wall._scroll.verticalScrollBar().value() == 0
    models.selection.update(layer=30, kv_head=0)  # before there is a picture, too
    assert wall._scroll.verticalScrollBar().value() > 0
    after = wall._canvas.selected_rect()
    assert after.top() > before.top()
    visible = wall._canvas.visibleRegion().boundingRect()
    assert visible.contains(after.center().toPoint())


# ---- the newest row ----------------------------------------------------------------------------------------------


def test_weights_reach_the_image_and_hover_tells_them(models: Models, show: Callable[..., Any], qtbot: QtBot) -> None:
    view = show(AttentionView(models))
    feed(models)
    piece = models.slices.attention
    assert piece is not None
    assert view._map.image.image.shape == (samples.HEADS, TOKENS)
    view._map._hover_at(QPointF(4.5, 6.5))
    assert str(np.float32(piece.weights[6, 4])) in view._readout.text()
    plot = view._map.plot_rect
    pos = QPoint(int(plot.left() + 4.5 / TOKENS * plot.width()), int(plot.top() + 6.5 / samples.HEADS * plot.height()))
    qtbot.mouseClick(view._map, Qt.MouseButton.LeftButton, pos=pos)
    assert (models.selection.now.position, models.selection.now.kv_head) == (4, 3)


def test_the_colour_scale_is_a_choice(models: Models, show: Callable[..., Any]) -> None:
    view = show(AttentionView(models))
    feed(models)
    piece = models.slices.attention
    for scale in (LOG, PER_HEAD, LINEAR):
        view.choose(scale)
        assert view._segments.choice == scale
        assert (view._map.image.image == attention_indices(piece, scale)).all()


def test_masses_stand_beside_their_heads(models: Models, show: Callable[..., Any]) -> None:
    view = show(AttentionView(models))
    feed(models)
    record = models.timeline.latest
    assert record is not None
    assert record.sequences[0].attention is not None
    assert [m.first for m in view._masses._masses] == pytest.approx(
        record.sequences[0].attention.first_mass[3].tolist()
    )


# ---- choices, times, bytes, facts --------------------------------------------------------------------------------


def test_clicking_or_entering_a_choice_forces_it(models: Models, show: Callable[..., Any], qtbot: QtBot) -> None:
    view = show(NextTokenView(models))
    record = models.timeline.latest
    assert record is not None
    wanted = record.sequences[0].candidates
    place = view._list.visualRect(view._list_model.index(2)).center()
    with qtbot.waitSignal(view.token_forced) as clicked:
        qtbot.mouseClick(view._list.viewport(), Qt.MouseButton.LeftButton, pos=place)
    assert clicked.args == [wanted[2].token_id]
    qtbot.keyClick(view._list, Qt.Key.Key_Up)
    with qtbot.waitSignal(view.token_forced) as entered:
        qtbot.keyClick(view._list, Qt.Key.Key_Return)
    assert entered.args == [wanted[1].token_id]


def test_one_click_forces_once(models: Models, show: Callable[..., Any], qtbot: QtBot) -> None:
    view = show(NextTokenView(models))
    forced: list[int] = []
    view.token_forced.connect(forced.append)
    place = view._list.visualRect(view._list_model.index(0)).center()
    qtbot.mouseClick(view._list.viewport(), Qt.MouseButton.LeftButton, pos=place)
    assert len(forced) == 1


def test_clicking_a_bar_looks_at_its_step_and_the_last_one_is_live(
    models: Models, show: Callable[..., Any], qtbot: QtBot
) -> None:
    view = show(TimingsView(models))
    frame, surface = view.plot.canvas.frame, view.plot.canvas.viewport()
    qtbot.mouseClick(surface, Qt.MouseButton.LeftButton, pos=QPoint(round(frame.x_of(12.2)), 60))
    assert models.selection.now.step == 12
    qtbot.mouseClick(surface, Qt.MouseButton.LeftButton, pos=QPoint(round(frame.x_of(STEPS)), 60))
    assert models.selection.now.step is None


def test_times_are_read_once_and_again_after_a_rewind(models: Models, show: Callable[..., Any], qtbot: QtBot) -> None:
    view = show(TimingsView(models))
    models.timeline.append([samples.step_record(step) for step in range(STEPS + 1, STEPS + 400)])
    models.timeline.tell()
    chart = view.plot.canvas.chart
    assert chart.points[:, 0].tolist() == list(range(STEPS + 400))
    (high,) = {chart.home[1][1]}
    expected = [min(record.timings.total_ms, high) for record in models.timeline.records]
    assert chart.points[:, 1].tolist() == pytest.approx(expected, rel=1e-5)
    models.timeline.rewind(3)
    models.timeline.append([samples.step_record(4)])
    models.timeline.tell()
    assert view.plot.canvas.chart.points[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert "looking" in view.key.accessibleName().split(", ")[3]


def test_the_phases_of_a_step_each_have_their_own_number(models: Models, show: Callable[..., Any]) -> None:
    last = models.timeline.latest
    assert last is not None
    times = replace(last.timings, forward_ms=5.0, prepare_ms=1.5, sample_ms=0.25, observe_ms=2.0)
    models.timeline.append([replace(last, step=STEPS + 1, timings=times)])
    view = show(TimingsView(models))
    words = f"step {STEPS + 1}: forward 5.00 ms, prepare 1.50 ms, sample 0.25 ms, looking 2.00 ms"
    assert view.plot.toolTip() == words
    assert view.plot.words == f"step {STEPS + 1} · decode · 8.75 ms"


def test_memory_over_the_steps_follows_the_mouse_and_a_click(
    models: Models, show: Callable[..., Any], qtbot: QtBot
) -> None:
    view = show(BytesView(models))
    view.choose("steps")
    QApplication.processEvents()
    assert view.plot.words.startswith(f"step {STEPS} · stored ")
    frame, surface = view.plot.canvas.frame, view.plot.canvas.viewport()
    place = QPoint(round(frame.x_of(7)), 60)
    qtbot.mouseMove(surface, place)
    record = models.timeline.records[7]
    assert view.plot.words.startswith(f"step 7 · stored {byte_size(record.num_bytes.stored)}")
    qtbot.mouseClick(surface, Qt.MouseButton.LeftButton, pos=place)
    assert models.selection.now.step == 7


def test_a_bar_that_going_back_took_away_selects_nothing(models: Models, show: Callable[..., Any]) -> None:
    view = show(BytesView(models))
    view.plot.picked.emit(len(models.timeline.records))
    assert models.selection.now.step is None


def test_the_ledger_lists_every_line(models: Models, show: Callable[..., Any]) -> None:
    last = models.timeline.latest
    assert last is not None
    first, *others = last.num_bytes.layers
    held = replace(last.num_bytes, layers=(replace(first, predicted=first.predicted - 512), *others))
    models.timeline.append([replace(last, step=STEPS + 1, num_bytes=held)])
    view = show(BytesView(models))
    lines = {line.label: line.text for line in view.state.lines}
    assert len({held.predicted, held.stored, held.reserved, held.looking, held.process}) == 5, "no number for another"
    assert lines["formula 2·L·H_kv·D·S·4"] == f"{held.predicted:,}"
    assert lines["stored beyond the formula"] == "512"
    assert lines["stored in tensors"] == f"{held.stored:,}"
    assert lines["room to grow"] == f"+{held.reserved - held.stored:,}"
    assert lines["reserved in storage"] == f"{held.reserved:,}"
    assert lines["held for looking"] == f"{held.looking:,}"
    assert lines["held by the allocator"] == "cannot be asked here"
    assert lines["process, resident"] == f"{held.process:,}"
    told = dict(line.strip().split("\t") for line in view._facts.accessibleDescription().split("\n"))
    assert told == lines, "a screen reader has the same numbers at the same labels"


def test_the_inspector_tells_what_is_known_of_a_token(models: Models, show: Callable[..., Any]) -> None:
    view = show(InspectorView(models))
    feed(models)
    view.show_value("K[3, 1, 13, 5] = -1.8342   ·named")
    text = view._facts.text()
    token = models.timeline.tokens(0)[13]
    assert f"13 · {token.token_id}" in text
    assert f"{token.surprisal:.2f} nats" in text
    assert "K[3, 1, 13, 5] = -1.8342" in text
    assert "K[3, 1, 13]" in text


def facts_of(view: InspectorView) -> dict[str, str]:
    return {fact.label: fact.text for fact in view._facts._facts}


def test_norms_are_told_as_written_and_as_stored(models: Models, show: Callable[..., Any]) -> None:
    view = show(InspectorView(models))
    feed(models)
    row, stats = models.slices.row, samples.row_stats(1, 13 - samples.PROMPT + 1)  # of the step that wrote token 13
    assert row is not None
    written, stored = float(stats.key_norm[3].mean()), float(np.linalg.norm(row.keys[3], axis=1).mean())
    assert written != pytest.approx(stored, rel=0.01)
    facts = facts_of(view)
    assert facts["‖k‖ as written"] == f"L3 {written:.3g}"
    assert facts["‖k‖ as stored"] == f"L3 {stored:.3g}"
    # a cache that holds what was written says it once
    same = tuple(np.tile(stats.key_norm[n, :, :1] / np.sqrt(8), 8) for n in range(samples.LAYERS))
    models.slices.put(replace(row, keys=same))
    facts = facts_of(view)
    assert facts["‖k‖ as written"] == f"L3 {written:.3g}"
    assert "‖k‖ as stored" not in facts
    assert "‖v‖ as stored" in facts
    models.slices.put(replace(row, layers=row.layers[:3], keys=row.keys[:3], values=row.values[:3]))
    assert facts_of(view)["‖k‖ as stored"] == "L3 gone"


def test_a_row_of_another_token_is_not_taken_for_this_one(models: Models, show: Callable[..., Any]) -> None:
    view = show(InspectorView(models))
    feed(models)
    assert "K[3, 1, 13]" in facts_of(view)
    models.selection.update(position=5)
    assert not [label for label in facts_of(view) if label.startswith(("K[", "V["))]
    assert "‖k‖ as stored" not in facts_of(view)


def test_attention_of_another_step_is_no_fact_of_this_one(models: Models, show: Callable[..., Any]) -> None:
    show(AttentionView(models))
    view = show(InspectorView(models))
    feed(models)
    assert "attention from newest, L3" in facts_of(view)
    models.selection.update(step=STEPS - 1)
    assert "attention from newest, L3" not in facts_of(view)


def test_a_token_that_a_past_step_has_not_reached_is_not_inspected(models: Models, show: Callable[..., Any]) -> None:
    view = show(InspectorView(models))
    models.selection.update(step=2, position=13)
    assert view._empty.isVisible()


def test_a_bad_value_is_warned_of_at_its_token(models: Models, show: Callable[..., Any]) -> None:
    view = show(InspectorView(models))
    record = samples.step_record(STEPS + 1)
    position = record.sequences[0].first_position
    bad = (NonFinite("keys", 2, 1, position, 4),)
    models.timeline.append([replace(record, non_finite=bad)])
    models.selection.update(position=position)
    assert "keys L2 h1 · 4" in view._facts.text()
    models.selection.update(position=5)
    assert "L2 h1" not in view._facts.text()


def test_panels_hand_out_their_picture(models: Models, show: Callable[..., Any]) -> None:
    view: Panel = show(BytesView(models), 400, 200)
    assert view.grab_picture().width() == 400
