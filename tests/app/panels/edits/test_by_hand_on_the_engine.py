"""Every kind of edit of rows is made by mouse on the token strip, the head and the wall of a live session, and undone;
an impossible edit is refused in one sentence and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import QPointF
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QDialog, QWidget

from app.dialogs.edits import NoiseForm, OverwriteForm, ScaleForm
from engine.spec.cache import cache_preset
from engine.spec.edit import AddNoise, Drop, Mask, Overwrite, Pin, Rows, Scale, Zero
from engine.wire.records import EditMade
from tests.app.driver import Driver
from tests.app.panels.edits.menus import LEFT, choose, opened
from tests.app.panels.edits.test_by_hand import drag, press_right, wall_place

TEXT = "Once upon a time there was a little girl named Lily"
BY_DIALOG: dict[str, type[QDialog]] = {
    "Scale…": ScaleForm, "Add noise…": NoiseForm, "Overwrite from…": OverwriteForm,
}  # fmt: skip
ENTRIES = {
    "Zero": Zero, "Scale…": Scale, "Add noise…": AddNoise, "Overwrite from…": Overwrite, "Mask": Mask, "Pin": Pin,
    "Drop": Drop,
}  # fmt: skip


@pytest.fixture(scope="module")
def driver(qapp: QApplication) -> Iterator[Driver]:
    driver = Driver(qapp, cache_preset("h2o").spec)  # a rule that drops, so that rows can be pinned and dropped
    driver.window.resize(1600, 1000)
    driver.send(TEXT)
    driver.steps(3)
    driver.models.selection.update(layer=2, kv_head=1)
    driver.wait_until_idle(lambda: (piece := driver.models.pictures.head) is not None and piece.request.kv_head == 1)
    yield driver
    driver.close()


def made(driver: Driver) -> list[object]:
    """The edits on the path to the live step."""
    history = driver.models.history
    nodes = history.path(history.live)
    return [change.edit for node in nodes for change in history.changes(node) if isinstance(change, EditMade)]


def head_place(driver: Driver, position: int, channel: int) -> QPointF:
    chart, piece = driver.window.head.map, driver.models.pictures.head
    assert piece is not None
    plot, (columns, channels) = chart.plot_rect, piece.low.shape
    width, height = plot.width() / columns, plot.height() / channels
    return QPointF(plot.left() + (position + 0.5) * width, plot.top() + (channel + 0.5) * height)


def drag_over(driver: Driver, panel: str) -> tuple[QWidget, QPointF, Rows]:
    """A drag over some rows there: the widget, a place in the middle, and the rows."""
    window = driver.window
    if panel == "strip":
        strip = window.tokens.canvas
        first, last = (QPointF(strip.token_rect(index).center()) for index in (4, 6))
        drag(strip.viewport(), first, last)
        return strip.viewport(), first, Rows(4, 7)
    if panel == "head":
        channels = driver.models.pictures.head.low.shape[1]  # type: ignore[union-attr]
        drag(window.head.map, head_place(driver, 3, 0), head_place(driver, 5, channels - 1))
        return window.head.map, head_place(driver, 4, 3), Rows(3, 6, (2,), (1,), None, "keys")
    canvas = window.wall.canvas
    drag(canvas, wall_place(driver.shell, 2, 1, 0.2), wall_place(driver.shell, 2, 1, 0.5))
    area = driver.models.selection.now.area
    assert area is not None
    return canvas, wall_place(driver.shell, 2, 1, 0.4), Rows(area.start, area.stop, (2,), (1,))


@pytest.mark.parametrize("panel", ["strip", "head", "wall"])
def test_every_edit_of_rows_is_made_by_mouse_and_undone(driver: Driver, panel: str) -> None:
    for entry, kind in ENTRIES.items():
        widget, place, rows = drag_over(driver, panel)
        if kind is Drop and panel != "strip":  # one head of several
            why = "The kv heads of a layer hold equally many rows, and layer 2 has 4: drop in all of them, or mask"
            assert refused(driver, widget, place, entry).startswith(why)
            continue
        choose(press_right(widget, place), entry)
        if entry in BY_DIALOG:
            form = opened(BY_DIALOG[entry])
            QTest.mouseClick(form.ok, LEFT)  # type: ignore[attr-defined]
        driver.wait_until_idle(lambda: len(made(driver)) == 1)
        edit = made(driver)[-1]
        assert type(edit) is kind, entry
        whole_rows = isinstance(edit, (Mask, Pin, Drop))
        expected = Rows(rows.start, rows.stop, rows.layers, rows.kv_heads) if whole_rows else rows
        assert edit.rows == expected, f"{entry} on the {panel}"  # type: ignore[attr-defined]
        assert driver.models.status.failure == ""
        driver.window.actions_["edit.undo"].trigger()
        driver.wait_until_idle(lambda: not made(driver))


def test_rows_that_were_dropped_by_mouse_are_gone_from_the_picture(driver: Driver) -> None:
    widget, place, rows = drag_over(driver, "strip")
    choose(press_right(widget, place), "Drop")
    driver.wait_until_idle(lambda: made(driver))
    absent = driver.models.pictures.head.absent  # type: ignore[union-attr]
    assert absent is not None
    assert absent[rows.start : rows.stop].tolist() == [1, 1, 1]
    assert int(absent.sum()) == 3
    driver.window.actions_["edit.undo"].trigger()
    driver.wait_until_idle(lambda: not made(driver))
    assert driver.models.pictures.head.absent is None or not driver.models.pictures.head.absent.any()  # type: ignore[union-attr]


def refused(driver: Driver, widget: QWidget, place: QPointF, entry: str) -> str:
    """The engine's refusal after a click on an entry of the menu."""
    before = driver.models.history.live
    choose(press_right(widget, place), entry)
    driver.until(lambda: driver.models.status.failure, may_fail=True)
    said = driver.models.status.failure
    driver.models.status.fail("")
    driver.wait_until_idle()
    assert (made(driver), driver.models.history.live) == ([], before)
    return said


def barred(widget: QWidget, place: QPointF, entry: str) -> str:
    """Why an entry of the menu cannot be clicked."""
    menu = press_right(widget, place)
    (action,) = [action for action in menu.actions() if action.text() == entry]
    menu.close()
    assert not action.isEnabled()
    return action.toolTip().split("Not now: ")[1]


def test_an_impossible_edit_by_mouse_is_refused_and_changes_nothing(driver: Driver) -> None:
    window, models = driver.window, driver.models
    drag(window.head.map, head_place(driver, 3, 2), head_place(driver, 5, 6))  # some channels
    for entry, why in (("Mask", "a row is hidden as a whole"), ("Drop", "as a whole")):
        assert why in barred(window.head.map, head_place(driver, 4, 4), entry)
    strip, count = window.tokens.canvas, models.timeline.num_tokens(0)
    drag(strip.viewport(), *(QPointF(strip.token_rect(index).center()) for index in (0, count - 1)))
    for entry in ("Drop", "Mask"):
        assert "newest" in barred(strip.viewport(), QPointF(strip.token_rect(3).center()), entry)
    widget, place, _ = drag_over(driver, "strip")
    choose(press_right(widget, place), "Overwrite from…")
    form = opened(OverwriteForm)
    form.step.setValue(9_999)  # type: ignore[attr-defined]
    QTest.mouseClick(form.ok, LEFT)  # type: ignore[attr-defined]
    driver.until(lambda: driver.models.status.failure, may_fail=True)
    assert "9,999" in models.status.failure or "9999" in models.status.failure
    models.status.fail("")
    driver.wait_until_idle()
    assert made(driver) == []


def test_pins_and_drops_are_not_offered_where_no_rule_drops(driver: Driver) -> None:
    driver.choose(cache_preset("growing").spec)
    widget, place, _ = drag_over(driver, "strip")
    menu = press_right(widget, place)
    words = {action.text(): (action.isEnabled(), action.toolTip()) for action in menu.actions()}
    menu.close()
    driver.choose(cache_preset("h2o").spec)
    assert not words["Pin"][0]
    assert "rule" in words["Pin"][1], words["Pin"][1]
