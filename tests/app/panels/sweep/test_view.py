"""The sweep in the real window: row by row, as a plot, stopped."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QComboBox, QStyle, QStyleOptionComboBox
from pytestqt.qtbot import QtBot

from app.kit.rows_view import PLOT, TABLE
from app.models import Models
from app.panels.bench import BenchView
from app.panels.sweep import SweepView
from engine.spec.cache import PRESETS, CacheSpec, cache_named
from engine.spec.sampling import SamplingParams
from engine.wire.measurements import SweepRow
from tests.app.panels.desk import Desk, click
from tests.app.rich_answers import measured_models


def test_a_sweep_fills_row_by_row_and_says_what_is_unavailable(desk: Desk) -> None:
    desk.run(CacheSpec())
    view = desk.sweep
    view.steps.setValue(3)
    held = desk.models.timeline.num_tokens(desk.models.selection.now.seq_id)
    assert view.note.text().startswith(f"from {held} tokens"), "what is live, not the prompt alone"
    assert len(view.table.cells.rows) == len(PRESETS), "before it, what each mode is"
    view.measure()
    desk.until(lambda: len(desk.models.measurements.sweep.answers) >= 3)
    assert view.button.text().startswith("Stop")
    desk.until(lambda: not view.measurement.is_waiting)
    rows = [swept.row for swept in desk.models.measurements.sweep.answers]
    request = desk.models.measurements.sweep.answers[0].request
    live = [token.token_id for token in desk.models.timeline.tokens(desk.models.selection.now.seq_id)]
    assert list(request.texts[0].prompt.token_ids or ()) == live
    assert view.note.text().startswith(f"over 3 steps after {held} tokens")
    assert [row.cache for row in rows] == list(PRESETS)
    by_name = {row.cache: row for row in rows}
    growing, sliding = by_name["growing"], by_name["sliding"]
    assert isinstance(growing, SweepRow)
    assert isinstance(sliding, SweepRow)
    assert growing.mean_kl < 1e-6
    assert sliding.kv_bytes < growing.kv_bytes / 2, "a quarter of the tokens"
    view.table.horizontalHeader().sectionClicked.emit(1)
    sizes = [row.kv_bytes for row in view.sorted_rows() if isinstance(row, SweepRow)]
    assert sizes == sorted(sizes)
    view.table.horizontalHeader().sectionClicked.emit(1)
    assert [row.kv_bytes for row in view.sorted_rows() if isinstance(row, SweepRow)] == sorted(sizes, reverse=True)
    view.copy_table()
    assert len(QGuiApplication.clipboard().text().splitlines()) == len(PRESETS) + 1
    view.choose(PLOT)
    QApplication.processEvents()
    assert view.plot.isVisible()
    assert view.plot.note.text() == f"— best for its bytes, over 3 steps after {held} tokens"
    assert view.plot.canvas.chart is not None
    names = [row.cache for row in rows if isinstance(row, SweepRow) and row.kv_bytes]
    place = view.plot.canvas.frame.point_of(*view.plot.canvas.chart.points[names.index("kivi-4")])
    click(view.plot.canvas.viewport(), place.x(), place.y())
    assert view.plot.words.text().startswith("KIVI-4 · ")
    desk.run(CacheSpec())
    assert desk.models.measurements.sweep.answers, "another run does not take back what was measured"
    assert view.provenance_label.text == "measured", "it begins with the same tokens"
    desk.intents.on_prompt_submitted("Another story", SamplingParams())
    desk.until(lambda: desk.controller.is_idle and view.provenance_label.kind == "past")
    assert view.provenance_label.text == "measured, of another prompt or branch"
    assert (
        view.plot.note.text() == f"— best for its bytes, over 3 steps after {held} tokens, of another prompt or branch"
    )
    view.choose(TABLE)
    assert view.note.text() == f"over 3 steps after {held} tokens; ppl is of tokens that the exact model chose"
    room = 490  # of the panel in a window 1280 pixels wide
    assert view.note.fontMetrics().horizontalAdvance(view.note.text()) < room, "it is not cut"


def test_a_sweep_leaves_its_steps_room_in_the_context(desk: Desk) -> None:
    desk.run(CacheSpec())
    view = desk.sweep
    held = desk.models.timeline.num_tokens(desk.models.selection.now.seq_id)
    view.steps.setRange(2, 2000)
    view.steps.setValue(1024 - held + 5)
    assert len(view.texts()[0].prompt.token_ids or ()) == held - 5
    view.source.setCurrentIndex(1)
    prompt = [t for t in desk.models.timeline.tokens(desk.models.selection.now.seq_id) if t.is_prompt]
    assert len(view.texts()[0].prompt.token_ids or ()) == min(len(prompt), held - 5)
    view.source.setCurrentIndex(0)


def test_a_sweep_can_be_stopped_and_says_so(desk: Desk) -> None:
    desk.run(CacheSpec())
    view = desk.sweep
    view.steps.setValue(10)
    view.measure()
    desk.until(lambda: any(each.request.num_steps == 10 for each in desk.models.measurements.sweep.answers))
    view.button.click()  # what an earlier sweep has measured stands until this one answers
    desk.until(lambda: not view.measurement.is_waiting)
    assert 1 <= len(desk.models.measurements.sweep.answers) < len(PRESETS)
    known = desk.models.measurements.sweep.answers
    assert f"stopped after {len(known)} of {len(PRESETS)}" in view.provenance_label.whole
    assert "goes on from there" in view.note.text()
    rates = {each.row.cache: each.row.tok_per_s for each in known if isinstance(each.row, SweepRow)}
    view.measure()
    desk.until(lambda: not view.measurement.is_waiting)
    rows = [each.row for each in desk.models.measurements.sweep.answers]
    assert [row.cache for row in rows] == list(PRESETS), "each once"
    assert {row.cache: row.tok_per_s for row in rows[: len(known)] if isinstance(row, SweepRow)} == rates
    assert view.measurement.answers[-1].is_last


def test_a_sweep_tries_the_cache_in_use_too(desk: Desk) -> None:
    """A mode that no preset has stands in the table under its own name, and is measured with the others."""
    cache = cache_named("int8/fp8-token-head")
    desk.run(cache, steps=2)
    view = desk.sweep
    view.steps.setValue(2)
    view.measure()
    desk.until(lambda: not view.measurement.is_waiting)
    labels = {row[0].text for row in view.table.cells.rows}
    assert labels == {*(preset.label for preset in PRESETS.values()), "K INT8 · V FP8 per token"}
    row = desk.models.measurements.sweep.answers[-1].row
    assert isinstance(row, SweepRow)
    by_name = {answer.row.cache: answer.row for answer in desk.models.measurements.sweep.answers}
    assert row.cache == "int8/fp8-token-head"
    assert not row.lossless
    growing = by_name["growing"]
    assert isinstance(growing, SweepRow)
    assert row.kv_bytes * 128 == growing.kv_bytes * (34 + 36) / 2, "32 codes and a scale of 2 or of 4 bytes a row"


def test_in_a_narrow_panel_every_box_shows_what_it_says(qapp: QApplication) -> None:
    view = SweepView(Models())
    view.resize(474, 230)  # its room in a window of 1280
    view.show()
    view.layout().activate()
    for index in range(view.codecs.count()):
        view.codecs.setCurrentIndex(index)
        QApplication.processEvents()
        assert room_left(view.codecs) >= 0, f"{view.codecs.currentText()} is cut"
        assert index > 0 or min(room_left(box) for box in view.boxes) >= 0
    view.close()


def room_left(box: QComboBox) -> int:
    """Pixels beside the text of a box, in the place that its style has for it."""
    option = QStyleOptionComboBox()
    box.initStyleOption(option)
    part = QStyle.SubControl.SC_ComboBoxEditField
    place = box.style().subControlRect(QStyle.ComplexControl.CC_ComboBox, option, part, box)
    return place.width() - box.fontMetrics().horizontalAdvance(box.currentText())


def test_a_grid_of_texts_sizes_and_codecs(desk: Desk) -> None:
    """Three sizes of every rule, rows as they are and in INT8, on all texts: the plot is of the marked row's text."""
    desk.run(CacheSpec())
    view = desk.sweep
    view.source.setCurrentIndex(view.source.count() - 1)
    view.budgets.choose("0.5,0.25,0.125")
    view.codecs.choose("exact,int8")
    view.steps.setValue(2)
    request = view.request()
    names = [mode.name for mode in request.modes]
    assert [text.name for text in request.texts] == ["all tokens", "prompt", "last tokens", "planted fact"]
    assert {"h2o@50%", "h2o@12.5%", "h2o+int8@25%", "int8", "growing", "paged-int8"} <= set(names)
    assert len(names) == len(set(names))
    shown = replace(
        request, texts=request.texts[2:], modes=tuple(m for m in request.modes if m.name in ("growing", "h2o@25%"))
    )
    view.wants.emit(shown)
    desk.until(lambda: not view.measurement.is_waiting)
    rows = [each.row for each in desk.models.measurements.sweep.answers]
    assert [(row.cache, row.text) for row in rows] == [
        (mode, text) for text in ("last tokens", "planted fact") for mode in ("growing", "h2o@25%")
    ]
    heads = [head.text for head in view.table.cells.heads]
    assert heads[-2:] == ["recall", "text"]
    fact = next(cells for cells in view.table.cells.rows if cells[-1].text == "planted fact")
    assert fact[0].text == "Growing"
    assert fact[-2].text.endswith("%")
    assert {cells[0].text for cells in view.table.cells.rows} == {"Growing", "H2O @25%"}
    view.choose(PLOT)
    view.quality.choose("forgotten")
    QApplication.processEvents()
    assert view.plot.canvas.chart is not None
    assert len(view.plot.canvas.chart.points) == 0, "the first text asks for no fact"
    view.table.chosen.emit("h2o@25% on planted fact")
    QApplication.processEvents()
    assert len(view.plot.canvas.chart.points) == 2
    assert view.plot.title.text() == "part of the fact forgotten, by KV bytes"
    assert "recall" in view.plot.words.text()
    view.source.setCurrentIndex(0)
    view.budgets.setCurrentIndex(2)
    view.codecs.setCurrentIndex(0)
    view.quality.setCurrentIndex(0)


@pytest.mark.parametrize("kind", [SweepView, BenchView])
def test_return_in_the_number_of_steps_asks(qtbot: QtBot, kind: type[SweepView | BenchView]) -> None:
    view, asked = kind(measured_models()), []
    qtbot.addWidget(view)
    view.wants.connect(asked.append)
    view.steps.setValue(7)
    QTest.keyClick(view.steps, Qt.Key.Key_Return)
    assert [request.num_steps for request in asked] == [7]
