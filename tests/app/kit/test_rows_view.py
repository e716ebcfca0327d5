"""Rows of a measurement: what marks one, what a second press asks, and under which names they are shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QFileDialog, QMenu
from pytestqt.qtbot import QtBot

from app.models import Models
from app.panels.bench import BenchView, key_of
from engine.spec.cache import PRESETS
from engine.wire.commands import Cancel
from engine.wire.measurements import Bench
from engine.wire.status import Work
from tests.app.mouse import point_at
from tests.app.panels.bench.rows import bench_of, row

REQUEST = Bench(tuple((name, PRESETS[name].spec) for name in ("dynamic", "int8", "kivi-4")), (128,), 32, id=7)
ROWS = (row("dynamic", 128, 40), row("int8", 128, 60), row("kivi-4", 128, 50))
RATE, KV = 3, 7


@pytest.fixture
def view(qtbot: QtBot, qapp: QApplication, models: Models) -> BenchView:
    return bench_of(qtbot, models, REQUEST, ROWS, width=400, is_done=True)


def shown(view: BenchView) -> list[str]:
    table = view.table.model()
    return [str(table.index(line, 0).data()) for line in range(table.rowCount())]


def press(view: BenchView, line: int) -> str:
    """The key of the row that is marked after a click on a line."""
    view.table.clicked.emit(view.table.model().index(line, 0))
    assert view.state is not None
    return view.state.mark


def test_a_click_marks_the_row_that_stands_there_and_a_second_one_lets_it_go(view: BenchView) -> None:
    assert shown(view) == ["Dynamic", "INT8", "KIVI-4"]
    view.table.horizontalHeader().sectionClicked.emit(RATE)
    assert shown(view) == ["INT8", "KIVI-4", "Dynamic"]
    assert press(view, 1) == key_of(ROWS[2])
    assert press(view, 0) == key_of(ROWS[1])
    assert press(view, 0) == ""
    view.table.horizontalHeader().sectionClicked.emit(RATE)
    assert shown(view) == ["Dynamic", "KIVI-4", "INT8"]
    view.table.horizontalHeader().sectionClicked.emit(KV)
    assert view.state is not None
    assert view.state.sort == (KV, False)


def test_a_double_click_marks_a_row_and_enter_marks_and_lets_go(view: BenchView, qtbot: QtBot) -> None:
    surface, place = view.table.viewport(), view.table.visualRect(view.table.model().index(1, 0)).center()
    QTest.mouseClick(surface, Qt.MouseButton.LeftButton, pos=place)
    QTest.mouseDClick(surface, Qt.MouseButton.LeftButton, pos=place)
    assert view.state is not None
    assert view.state.marked == key_of(ROWS[1])
    for marked in ("", key_of(ROWS[1])):
        qtbot.keyClick(view.table, Qt.Key.Key_Return)
        assert view.state.marked == marked


def test_other_modes_that_are_chosen_leave_the_rows_that_were_measured(view: BenchView) -> None:
    view.modes_box.choose("evicting")
    view.refresh()
    assert shown(view) == ["Dynamic", "INT8", "KIVI-4"]


def test_a_second_press_asks_nothing_more_and_the_button_stops_it(
    qtbot: QtBot, view: BenchView, models: Models
) -> None:
    with qtbot.waitSignal(view.wants):
        view.measure()
    view.measurement.ask(replace(REQUEST, id=8), 4)
    models.status.set(replace(models.status.now, work=Work("Benchmarking", 2, 9, reply_to=8)))
    assert view.button.text() == "Stop  2/9"
    with qtbot.assertNotEmitted(view.wants):
        view.measure()
    with qtbot.waitSignal(view.wants) as caught:
        view.button.click()
    assert caught.args == [Cancel()]


def test_points_mark_their_rows_and_the_table_is_copied_and_saved(
    view: BenchView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    view.message.connect(told.append)
    view.resize(900, 300)
    QApplication.processEvents()
    assert view.state is not None
    assert (view.state.has_table, view.state.has_plot) == (True, True)
    chart = view.plot.canvas.chart
    assert chart is not None
    point_at(view.plot, 1)
    assert view.state.mark == chart.keys[1]
    point_at(view.plot, None)
    assert view.state.mark == ""
    view.plot.picked.emit(chart.keys[2])
    assert view.state.mark == chart.keys[2]
    view.plot.picked.emit(chart.keys[2])
    assert view.state.mark == ""
    menu = QMenu()
    view.add_to_menu(menu)
    assert [action.text() for action in menu.actions() if action.text()] == ["Copy table as CSV", "Save table…"]
    menu.actions()[0].trigger()
    assert QApplication.clipboard().text() == view.csv_text()
    asked: list[tuple[object, ...]] = []
    for name in ("", "t.csv", "no/such/t.csv"):
        answer = (str(tmp_path / name) if name else "", "")
        monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *given, a=answer: asked.append(given[1:]) or a)
        menu.actions()[1].trigger()
    assert asked[0] == ("Save table", view.file_name, "CSV table (*.csv)")
    assert (tmp_path / "t.csv").read_text() == view.csv_text()
    assert told[:2] == ["3 rows copied as CSV", f"Table saved to {tmp_path}/t.csv"]
    assert len(told) == 3
    assert "Table saved" not in told[2]
    nothing = BenchView(Models())
    empty = QMenu()
    nothing.add_to_menu(empty)
    assert not empty.actions()
