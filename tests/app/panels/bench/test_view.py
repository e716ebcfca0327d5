"""The bench in the real window: asked, answered row by row, stopped."""

from __future__ import annotations

import pytest
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QStyle, QStyleOptionComboBox

from app.kit.rows_view import PLOT
from app.panels.bench import BenchView
from engine.spec.cache import CacheSpec
from engine.wire.measurements import BenchRefused, BenchRow
from tests.app.panels.desk import Desk, click


@pytest.fixture
def view(desk: Desk) -> BenchView:
    panel = desk.window.panels["bench"]
    assert isinstance(panel, BenchView)
    desk.window.docks.docks["bench"].raise_()
    QApplication.processEvents()
    return panel


def test_what_is_chosen_is_whole_in_the_usual_width(dark_theme: None, view: BenchView) -> None:
    view.resize(510, 230)
    QApplication.processEvents()
    for box in (view.modes_box, view.contexts, view.batches, view.quantity):
        option = QStyleOptionComboBox()
        box.initStyleOption(option)
        room = box.style().subControlRect(
            QStyle.ComplexControl.CC_ComboBox, option, QStyle.SubControl.SC_ComboBoxEditField, box
        )
        assert box.fontMetrics().horizontalAdvance(box.currentText()) <= room.width(), box.accessibleName()


def test_rows_come_one_by_one_and_the_live_cache_stays(desk: Desk, view: BenchView) -> None:
    desk.run(CacheSpec("paged"))
    held = desk.models.timeline.num_tokens(desk.models.selection.now.seq_id)
    view.contexts.choose("128,512,2048")
    view.steps.setValue(2)
    assert view.note.text() == "5 modes, in turns; this model's context is 1,024: measure their speed"
    desk.window.measure("bench")
    desk.until(lambda: bool(desk.models.measurements.bench.answers))
    assert view.button.text().startswith("Stop")
    desk.until(lambda: not view.measurement.is_waiting)
    rows = view.rows()
    assert [r.cache for r in rows if r.context == 128] == ["none", "dynamic", "static", "growing", "paged"]
    assert all(isinstance(r, BenchRefused) for r in rows if r.context == 2048)
    assert desk.models.timeline.num_tokens(desk.models.selection.now.seq_id) == held
    view.table.horizontalHeader().sectionClicked.emit(3)
    rates = [r.tok_per_s for r in view.sorted_rows() if isinstance(r, BenchRow)]
    assert rates == sorted(rates, reverse=True)
    view.copy_table()
    lines = QGuiApplication.clipboard().text().splitlines()
    assert len(lines) == len(rows) + 1
    assert lines[0].startswith("cache,context,batch,tok_per_s,spread,ratio,ttft_ms,kv_bytes,overhead_ratio,ms_per_step")
    view.choose(PLOT)
    view.quantity.choose("kv_bytes")
    QApplication.processEvents()
    chart = view.plot.canvas.chart
    assert chart is not None
    assert view.plot.title.text() == "bytes of K and V, by tokens of context"
    at = list(chart.keys).index("paged 512 1")
    place = view.plot.canvas.frame.point_of(*chart.points[at])
    click(view.plot.canvas.viewport(), place.x(), place.y())
    assert "512 tokens" in view.plot.words.text()


def test_it_can_be_stopped_and_says_so(desk: Desk, view: BenchView) -> None:
    view.contexts.choose("16,64,256,960")
    view.steps.setValue(40)
    view.measure()
    desk.until(lambda: view.measurement.is_waiting and len(view.rows()) >= 5 and view.rows()[0].context == 16)
    view.button.click()
    desk.until(lambda: not view.measurement.is_waiting)
    assert 5 <= len(view.rows()) < 20
    assert f"stopped after {len(view.rows())} of 20" in view.provenance_label.whole


def test_what_can_be_chosen_gives_way_in_a_narrow_window(desk: Desk, view: BenchView) -> None:
    """A row of boxes that keeps its width would push the panels beside it out of a window of 1,280 pixels."""
    for name in ("sweep", "bench"):
        assert desk.window.panels[name].minimumSizeHint().width() <= 480
    widest = view.contexts.maximumWidth()
    assert view.contexts.minimumSizeHint().width() < widest
