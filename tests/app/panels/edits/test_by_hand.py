"""Each edit by mouse on the real panels sends exactly the expected command."""

from __future__ import annotations

from msgspec.structs import replace
from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QContextMenuEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMenu, QWidget

from app.dialogs.edits import BiasForm
from app.shell import Shell
from engine.spec.edit import BiasLogits, Mask, Rows, Zero
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.mouse import move_mouse
from tests.app.panels.edits.menus import LEFT, choose, made, opened


def drag(widget: QWidget, start: QPointF, stop: QPointF, keys: Qt.KeyboardModifier | None = None) -> None:
    held = keys or Qt.KeyboardModifier.NoModifier
    QTest.mousePress(widget, LEFT, held, start.toPoint())
    middle = (start + stop) / 2
    for place in (middle, stop):
        move_mouse(widget, place, LEFT)
    QTest.mouseRelease(widget, LEFT, held, stop.toPoint())
    QApplication.processEvents()


def press_right(widget: QWidget, place: QPointF) -> QMenu:
    """The context menu that opens there."""
    at = place.toPoint()
    event = QContextMenuEvent(QContextMenuEvent.Reason.Mouse, at, widget.mapToGlobal(at))
    QApplication.sendEvent(widget, event)
    QApplication.processEvents()
    menu = QApplication.activePopupWidget()
    assert isinstance(menu, QMenu)
    return menu


def head_place(shell: Shell, position: int, channel: int) -> QPointF:
    """The middle of a cell of the head."""
    plot = shell.window.head.map.plot_rect
    width, height = plot.width() / 24, plot.height() / samples.HEAD_DIM
    return QPointF(plot.left() + (position + 0.5) * width, plot.top() + (channel + 0.5) * height)


def token_place(shell: Shell, index: int) -> QPointF:
    return QPointF(shell.window.tokens.canvas.token_rect(index).center())


def wall_place(shell: Shell, layer: int, kv_head: int, share: float) -> QPointF:
    canvas = shell.window.wall.canvas
    small = canvas.layout_now.picture_of(layer, kv_head)
    return QPointF(small.x + share * small.width, small.y + small.height / 2) / canvas.devicePixelRatioF()


def test_a_drag_over_tokens_and_the_menu_zero_their_rows_in_every_layer(desk: Shell, engine: FakeEngine) -> None:
    strip = desk.window.tokens.canvas.viewport()
    drag(strip, token_place(desk, 4), token_place(desk, 7))
    assert desk.models.selection.now.area == Rows(4, 8)
    menu = press_right(strip, token_place(desk, 5))
    words = [action.text() for action in menu.actions()]
    assert words[0] == "positions 4 … 7 · every layer · every head · K and V"
    # 4 tokens x 6 layers x 4 kv heads x 32 numbers of K and of V, 4 bytes each
    assert words[1] == "6,144 numbers, 24.0 KiB"
    choose(menu, "Zero")
    assert made(engine) == [Zero(0, Rows(4, 8))]


def test_a_drag_backwards_is_the_same_and_a_click_gives_it_up(desk: Shell) -> None:
    strip = desk.window.tokens.canvas.viewport()
    drag(strip, token_place(desk, 7), token_place(desk, 4))
    assert desk.models.selection.now.area == Rows(4, 8)
    QTest.mouseClick(strip, LEFT, pos=token_place(desk, 9).toPoint())
    assert (desk.models.selection.now.area, desk.models.selection.now.position) == (None, 9)


def test_a_drag_over_a_head_takes_positions_and_channels_of_its_tensor(desk: Shell, engine: FakeEngine) -> None:
    drag(desk.window.head.map, head_place(desk, 3, 5), head_place(desk, 6, 9))
    rows = Rows(3, 7, (2,), (1,), (5, 6, 7, 8, 9), "keys")
    assert desk.models.selection.now.area == rows
    QTest.keyClick(desk.window.head.map, Qt.Key.Key_Z)
    assert made(engine) == [Zero(0, rows)]


def test_a_whole_row_of_a_head_is_masked_as_a_whole(desk: Shell, engine: FakeEngine) -> None:
    drag(desk.window.head.map, head_place(desk, 3, 0), head_place(desk, 6, samples.HEAD_DIM - 1))
    assert desk.models.selection.now.area == Rows(3, 7, (2,), (1,), None, "keys")
    QTest.keyClick(desk.window.head.map, Qt.Key.Key_M)
    assert made(engine) == [Mask(0, Rows(3, 7, (2,), (1,)))]


def test_some_channels_cannot_be_masked_and_that_is_said(desk: Shell, engine: FakeEngine) -> None:
    drag(desk.window.head.map, head_place(desk, 3, 5), head_place(desk, 6, 9))
    QTest.keyClick(desk.window.head.map, Qt.Key.Key_M)
    assert not made(engine)
    assert desk.window.status.note.text().startswith("Mask is not possible now. A row is hidden as a whole")
    desk.models.selection.update(position=12, area=None)
    assert desk.window.status.note.text() == "", "the whole row can be hidden"


def test_shift_moves_the_picture_where_a_drag_selects(desk: Shell) -> None:
    desk.models.selection.update(position=12)
    desk.window.head.zoom_to_selection()
    before = desk.window.head.map.visible_range
    shift = Qt.KeyboardModifier.ShiftModifier
    plot = desk.window.head.map.plot_rect
    desk.window.head.map.zoom(0.5, 12.0)
    before = desk.window.head.map.visible_range
    drag(desk.window.head.map, plot.center(), plot.center() + QPointF(-60, 0), shift)
    assert desk.window.head.map.visible_range[0] > before[0]
    assert desk.models.selection.now.area is None


def test_a_drag_inside_a_thumbnail_takes_tokens_of_its_head(desk: Shell) -> None:
    drag(desk.window.wall.canvas, wall_place(desk, 4, 2, 0.01), wall_place(desk, 4, 2, 0.99))
    assert desk.models.selection.now.area == Rows(0, 24, (4,), (2,))


def test_a_drag_over_thumbnails_takes_all_tokens_of_layers_and_heads(desk: Shell, engine: FakeEngine) -> None:
    canvas = desk.window.wall.canvas
    drag(canvas, wall_place(desk, 1, 1, 0.5), wall_place(desk, 3, 2, 0.5))
    rows = Rows(0, 24, (1, 2, 3), (1, 2))
    assert desk.models.selection.now.area == rows
    menu = press_right(canvas, wall_place(desk, 2, 2, 0.5))
    choose(menu, "Of the selection: V alone")
    assert desk.models.selection.now.area == replace(rows, part="values")
    choose(press_right(canvas, wall_place(desk, 2, 2, 0.5)), "Zero")
    assert made(engine) == [Zero(0, replace(rows, part="values"))]


def test_a_menu_beside_the_area_is_of_what_stands_under_the_mouse(desk: Shell) -> None:
    canvas = desk.window.wall.canvas
    drag(canvas, wall_place(desk, 1, 1, 0.5), wall_place(desk, 3, 2, 0.5))
    press_right(canvas, wall_place(desk, 5, 3, 0.5))
    assert desk.models.selection.now.area == Rows(0, 24, (5,), (3,))


def test_a_drag_over_the_attention_row_takes_the_kv_heads_that_are_read(desk: Shell, engine: FakeEngine) -> None:
    plot = desk.window.attention.map.plot_rect
    width, height = plot.width() / 24, plot.height() / samples.HEADS
    first = QPointF(plot.left() + 2.5 * width, plot.top() + 2.5 * height)  # head 2 reads kv head 1
    last = QPointF(plot.left() + 5.5 * width, plot.top() + 4.5 * height)  # head 4 reads kv head 2
    drag(desk.window.attention.map, first, last)
    rows = Rows(2, 6, (2,), (1, 2))
    assert desk.models.selection.now.area == rows
    choose(press_right(desk.window.attention.map, first), "Mask")
    assert made(engine) == [Mask(0, rows)]


def test_nothing_is_edited_while_looking_back(desk: Shell, engine: FakeEngine) -> None:
    desk.models.selection.update(step=7)
    drag(desk.window.tokens.canvas.viewport(), token_place(desk, 2), token_place(desk, 3))
    assert desk.window.actions_.reason("edit.zero") == "edits are made on the live step: go to this one first"
    desk.intents.on_edited(Zero(0, Rows(2, 4)))
    assert not made(engine)


def test_a_candidate_is_banned_and_the_next_ban_keeps_it(desk: Shell, engine: FakeEngine) -> None:
    listed = desk.window.next_token.candidates
    for row in (0, 2):
        listed.customContextMenuRequested.emit(QPointF(9, (row + 0.5) * listed.row_height).toPoint())
        menu = QApplication.activePopupWidget()
        assert isinstance(menu, QMenu)
        text = next(action.text() for action in menu.actions() if action.text().startswith("Never choose"))
        choose(menu, text)
        turn(desk)
    first, _, third = (one.token_id for one in desk.models.timeline.latest.sequences[0].candidates[:3])
    assert made(engine) == [BiasLogits(0, banned=(first,)), BiasLogits(0, banned=(first, third))]


def test_a_candidate_is_biased_by_a_dialog_that_begins_with_it(desk: Shell, engine: FakeEngine) -> None:
    desk.window.next_token.bias_wanted.emit(107)
    form = opened(BiasForm)
    assert isinstance(form, BiasForm)
    form.amount.setValue(-3)
    form.ok.click()
    assert made(engine) == [BiasLogits(0, ((107, -3.0),))]


def test_shift_with_the_arrows_selects_token_by_token(desk: Shell) -> None:
    strip = desk.window.tokens.canvas
    QTest.mouseClick(strip.viewport(), LEFT, pos=token_place(desk, 4).toPoint())
    for _ in range(3):
        QTest.keyClick(strip, Qt.Key.Key_Right, Qt.KeyboardModifier.ShiftModifier)
    QTest.keyClick(strip, Qt.Key.Key_Left, Qt.KeyboardModifier.ShiftModifier)
    assert desk.models.selection.now.area == Rows(4, 7)
    QTest.keyClick(strip, Qt.Key.Key_Right)
    assert (desk.models.selection.now.area, desk.models.selection.now.position) == (None, 5)
