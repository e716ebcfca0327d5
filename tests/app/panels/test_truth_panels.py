"""The panels that measure, in the real window on the real engine and the bundled model: asked, answered, cancelled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget

from app.draw.format import brief
from app.kit.rows_view import PLOT
from app.kit.theme import load_fonts
from app.panels.bytes.view import LAYERS
from app.panels.evicted.view import WHY, EvictedView
from app.panels.parity.view import ParityView
from app.panels.sweep.view import SweepView
from engine.history.log import BoundedLog
from engine.spec.cache import CacheSpec
from engine.spec.codec import uniform
from engine.spec.presets import PRESETS, cache_named
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import SamplingParams
from engine.wire.measurements import SweepRow
from tests.app.driver import Driver

TEXT = "Once upon a time there was a little girl who lived in a village near the forest, and one day she"
PATIENCE_S = 120


class Desk(Driver):
    """The window with its measuring panels, and runs of one text."""

    def __init__(self, app: QApplication) -> None:
        super().__init__(app)
        self.window.arrange("truth")

    def run(self, cache: CacheSpec, steps: int = 6) -> None:
        """A new run of the same text in a cache."""
        self.models.selection.update(step=None, position=None, layer=0, kv_head=0)
        self.intents.on_cache_chosen(cache)
        self.until(lambda: self.models.status.now is not None and self.models.status.now.cache == cache)
        self.intents.on_prompt_submitted(TEXT, SamplingParams())
        self.until(lambda: self.controller.is_settled and self.has_chosen())
        self.intents.on_run_to(steps)
        self.until(lambda: self.controller.is_settled and len(self.models.timeline) == steps + 1)

    @property
    def parity(self) -> ParityView:
        panel = self.window.panels["parity"]
        assert isinstance(panel, ParityView)
        return panel

    @property
    def sweep(self) -> SweepView:
        panel = self.window.panels["sweep"]
        assert isinstance(panel, SweepView)
        return panel

    @property
    def evicted(self) -> EvictedView:
        panel = self.window.panels["evicted"]
        assert isinstance(panel, EvictedView)
        return panel


@pytest.fixture(scope="module")
def desk(qapp: QApplication) -> Iterator[Desk]:
    load_fonts()
    desk = Desk(qapp)
    yield desk
    desk.close()


def click(widget: QWidget, x: float, y: float) -> None:
    QTest.mouseClick(widget, Qt.MouseButton.LeftButton, pos=QPoint(round(x), round(y)))


# ---- parity ------------------------------------------------------------------------------------------------------


def test_parity_in_one_action(desk: Desk) -> None:
    desk.run(PRESETS["paged"].spec)
    desk.window.arrange("inspect")
    desk.parity.compare_with("uncached")
    desk.window.actions_["truth.parity"].trigger()
    assert desk.window.docks.layout_name == "truth"
    desk.until(lambda: not desk.parity.measurement.is_waiting)
    report = desk.models.measurements.parity.answer
    assert report is not None
    assert report.verdict == "within rounding"
    assert desk.parity.verdict.text() == "Within rounding: Paged against no cache"
    assert "top-1 7 of 7, steps 0 … 6" in desk.parity.numbers.text()
    assert not desk.parity.place.isEnabled()
    desk.intents.on_step()
    desk.until(lambda: desk.controller.is_settled and len(desk.models.timeline) == 8)
    QTest.qWait(150)
    assert "1 newer steps not compared" in desk.parity.numbers.text()


def test_parity_of_a_fork_takes_in_what_it_was_forked_from(desk: Desk) -> None:
    desk.run(CacheSpec())
    (parent,) = desk.models.timeline.sequence_ids()
    desk.intents.on_forked(parent)
    desk.until(lambda: desk.controller.is_settled and len(desk.models.timeline.sequence_ids()) == 2)
    desk.intents.on_step()
    desk.until(lambda: desk.controller.is_settled and len(desk.models.timeline) == 8)
    desk.models.selection.update(seq_id=desk.models.timeline.sequence_ids()[-1])
    check_parity(desk)
    assert desk.parity.verdict.text() == "Within rounding: Growing against no cache"
    assert "top-1 8 of 8, steps 0 … 7" in desk.parity.numbers.text()


def test_parity_of_a_few_steps_says_how_few(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    put = BoundedLog.put

    def put_alone(log: BoundedLog[Any], *entry: Any) -> None:
        log.clear()
        put(log, *entry)

    monkeypatch.setattr(BoundedLog, "put", put_alone)  # no room but for the newest logits
    desk.run(CacheSpec())
    check_parity(desk)
    assert desk.parity.verdict.text() == "Within rounding at 1 of 7 steps: Growing against no cache"
    assert "top-1 1 of 1, step 6 alone" in desk.parity.numbers.text()


def check_parity(desk: Desk) -> None:
    desk.parity.compare_with("uncached")
    desk.parity.ask()
    desk.until(lambda: not desk.parity.measurement.is_waiting)
    QTest.qWait(50)


def test_parity_against_another_mode_names_the_first_row_and_selects_it(desk: Desk) -> None:
    desk.run(CacheSpec())
    desk.parity.compare_with("kivi-2")
    desk.parity.compare_with("int8")
    desk.parity.ask()
    desk.until(lambda: not desk.parity.measurement.is_waiting)
    report = desk.models.measurements.parity.answer
    assert report is not None
    assert report.request.against == PRESETS["int8"].spec
    assert desk.parity.verdict.text() == "Lossy, as asked: Growing against INT8"
    assert "layer 0, K, token 0" in desk.parity.place.text()
    desk.models.selection.update(layer=3, position=9)
    desk.parity.place.click()
    now = desk.models.selection.now
    assert (now.layer, now.tensor, now.position) == (0, "keys", 0)


def test_a_dot_of_the_plot_is_a_step(desk: Desk) -> None:
    desk.run(CacheSpec())
    desk.parity.compare_with("uncached")
    desk.parity.ask()
    desk.until(lambda: not desk.parity.measurement.is_waiting)
    plot = desk.parity.plot
    assert plot.note.startswith("rounding, float32: up to "), "words stand above the points, not over them"
    frame = plot.canvas.frame
    click(plot.canvas.viewport(), frame.x_of(2.2), frame.rect.center().y())
    assert desk.models.selection.now.step == 2
    assert plot.words.startswith("step 2 ·")
    click(plot.canvas.viewport(), frame.x_of(6.0), frame.rect.center().y())
    assert desk.models.selection.now.step is None, "the newest step is the live one"
    desk.parity.choose("kl")
    assert desk.parity.plot.title == "KL, nats"


def test_parity_can_be_stopped(desk: Desk) -> None:
    desk.run(CacheSpec(), steps=40)
    desk.parity.compare_with("allocated")
    desk.parity.ask()
    desk.until(lambda: desk.parity.measurement.total > 0)
    assert desk.parity.button.text().startswith("Stop")
    desk.parity.button.click()
    desk.until(lambda: not desk.parity.measurement.is_waiting)
    assert desk.models.measurements.parity.answer is None
    assert desk.parity.button.text() == "Check"
    assert not desk.models.status.failure


# ---- why evicted -------------------------------------------------------------------------------------------------


def test_why_a_row_went(desk: Desk) -> None:
    desk.run(CacheSpec(retention=RetentionSpec("h2o", budget=12, sinks=1)))
    view = desk.evicted
    view.choose(WHY)
    assert view.headline.text().startswith("The latest: step 6 dropped")
    assert view.rule.text() == "H2O: Keeps the tokens that received most attention, and the latest."
    assert "Zhang et al., 2023" in view.formula.text()
    drop = desk.models.evictions.latest(desk.models.selection.now.seq_id, 0)[0]
    position = int(drop.eviction.positions[0])
    desk.models.selection.update(position=position, layer=drop.eviction.layer, kv_head=drop.eviction.kv_head or 0)
    assert f"({position}) went from" in view.headline.text()
    assert "of 24 heads" in view.heads.accessibleDescription()
    assert "lowest kept" in view.plot.words
    assert "protected" in view.plot.words
    view.grab()
    place = view.heads.cell_of(2, 1).center()
    click(view.heads, place.x(), place.y())
    assert (desk.models.selection.now.layer, desk.models.selection.now.kv_head) == (2, 1)
    desk.models.selection.update(position=0)
    assert "is held by every head" in view.headline.text(), "a sink"


def test_a_dropped_row_is_picked_from_its_dot(desk: Desk) -> None:
    desk.run(CacheSpec(retention=RetentionSpec("knorm", budget=12)), steps=2)
    desk.evicted.choose(WHY)
    desk.models.selection.update(step=0)
    canvas = desk.evicted.plot.canvas
    assert canvas.chart is not None
    place = canvas.frame.point_of(*canvas.chart.points[0])
    click(canvas.viewport(), place.x(), place.y())
    now = desk.models.selection.now
    (drop,) = [
        d for d in desk.models.evictions.latest(now.seq_id, 0) if (d.eviction.layer, d.eviction.kv_head) == (0, 0)
    ]
    assert now.position in drop.eviction.positions


def test_what_the_records_do_not_tell_is_not_claimed(desk: Desk) -> None:
    """A change of mode drops rows without a step: the panel must not say that they are held."""
    desk.run(CacheSpec())
    desk.evicted.choose(WHY)
    assert "Growing keeps every row" in desk.evicted._empty.text()
    spec = CacheSpec(retention=RetentionSpec("knorm", budget=12))
    desk.intents.on_cache_chosen(spec)
    desk.until(lambda: desk.models.status.now is not None and desk.models.status.now.cache == spec)
    desk.intents.on_step()
    desk.until(lambda: desk.controller.is_settled and len(desk.models.timeline) == 8)
    desk.models.selection.update(position=3)
    QTest.qWait(150)
    text = desk.evicted.headline.text()
    assert "change of mode" in text or "at least" in text


# ---- regret ------------------------------------------------------------------------------------------------------


def test_regret_is_measured_and_a_dot_selects_its_token(desk: Desk) -> None:
    desk.run(CacheSpec())
    desk.evicted.regret.choose("tova", 1)
    desk.window.actions_["truth.regret"].trigger()
    desk.until(lambda: not desk.evicted.measurement.is_waiting)
    found = desk.models.measurements.regret.answer
    assert found is not None
    assert "TOVA · rank correlation" in desk.evicted._detail.text()
    assert desk.evicted.regret.note.text().startswith("score: attention of the last query before the newest token")
    plot = desk.evicted.regret.plot
    QApplication.processEvents()
    best = int(found.kl.argmax())
    assert plot.canvas.chart is not None
    place = plot.canvas.frame.point_of(*plot.canvas.chart.points[best])
    click(plot.canvas.viewport(), place.x(), place.y())
    assert desk.models.selection.now.position == found.positions[best]
    assert f"KL {brief(float(found.kl[best]))}" in plot.words


def test_regret_on_a_cache_that_dropped_rows_is_refused_in_words(desk: Desk) -> None:
    desk.run(CacheSpec(retention=RetentionSpec("tova", budget=12)))
    desk.evicted.measure()
    desk.until(lambda: not desk.evicted.measurement.is_waiting)
    assert desk.models.measurements.regret.answer is None
    assert "has dropped rows" in desk.evicted.regret.invitation.text()
    desk.models.status.fail("")


# ---- sweep -------------------------------------------------------------------------------------------------------


def test_a_sweep_fills_row_by_row_and_says_what_is_unavailable(desk: Desk) -> None:
    desk.run(CacheSpec())
    view = desk.sweep
    view.steps.setValue(3)
    held = desk.models.timeline.num_tokens(desk.models.selection.now.seq_id)
    assert view.note.text().startswith(f"from {held} tokens"), "what is live, not the prompt alone"
    assert len(view.table.cells.rows) == len(PRESETS), "before it, what each mode is"
    view.ask()
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
    view._on_sorted(1)
    sizes = [row.kv_bytes for row in view.sorted_rows() if isinstance(row, SweepRow)]
    assert sizes == sorted(sizes)
    view._on_sorted(1)
    assert [row.kv_bytes for row in view.sorted_rows() if isinstance(row, SweepRow)] == sorted(sizes, reverse=True)
    view.copy_table()
    assert len(QGuiApplication.clipboard().text().splitlines()) == len(PRESETS) + 1
    view.choose(PLOT)
    QApplication.processEvents()
    assert view.plot.isVisible()
    assert view.plot.note == f"— best for its bytes, over 3 steps after {held} tokens"
    assert view.plot.canvas.chart is not None
    names = [row.cache for row in rows if isinstance(row, SweepRow) and row.kv_bytes]
    place = view.plot.canvas.frame.point_of(*view.plot.canvas.chart.points[names.index("kivi-4")])
    click(view.plot.canvas.viewport(), place.x(), place.y())
    assert view.plot.words.startswith("KIVI-4 · ")
    desk.run(CacheSpec())
    assert desk.models.measurements.sweep.answers, "another run does not take back what was measured"


def test_a_sweep_leaves_its_steps_room_in_the_context(desk: Desk) -> None:
    desk.run(CacheSpec())
    view = desk.sweep
    held = desk.models.timeline.num_tokens(desk.models.selection.now.seq_id)
    view.steps.setRange(2, 2000)
    view.steps.setValue(1024 - held + 5)
    assert len(view.texts()[0].prompt.token_ids or ()) == held - 5
    view._source.setCurrentIndex(1)
    prompt = [t for t in desk.models.timeline.tokens(desk.models.selection.now.seq_id) if t.is_prompt]
    assert len(view.texts()[0].prompt.token_ids or ()) == min(len(prompt), held - 5)
    view._source.setCurrentIndex(0)


def test_a_sweep_can_be_stopped_and_says_so(desk: Desk) -> None:
    desk.run(CacheSpec())
    view = desk.sweep
    view.steps.setValue(40)
    view.ask()
    desk.until(lambda: len(desk.models.measurements.sweep.answers) == 1)
    view.button.click()
    desk.until(lambda: not view.measurement.is_waiting)
    assert 1 <= len(desk.models.measurements.sweep.answers) < len(PRESETS)
    known = desk.models.measurements.sweep.answers
    assert f"stopped after {len(known)} of {len(PRESETS)}" in view._provenance.whole
    assert "goes on from there" in view.note.text()
    rates = {each.row.cache: each.row.tok_per_s for each in known if isinstance(each.row, SweepRow)}
    view.ask()
    desk.until(lambda: not view.measurement.is_waiting)
    rows = [each.row for each in desk.models.measurements.sweep.answers]
    assert [row.cache for row in rows] == list(PRESETS), "each once"
    assert {row.cache: row.tok_per_s for row in rows[: len(known)] if isinstance(row, SweepRow)} == rates
    assert view.measurement.answers[-1].is_last


def test_a_grid_of_texts_sizes_and_codecs(desk: Desk) -> None:
    """Three sizes of every rule, rows as they are and in INT8, on all texts: the plot is of the marked row's text."""
    desk.run(CacheSpec())
    view = desk.sweep
    view._source.setCurrentIndex(view._source.count() - 1)
    view._budgets.choose("0.5,0.25,0.125")
    view._codecs.choose("exact,int8")
    view.steps.setValue(2)
    request = view.request()
    names = [mode.name for mode in request.modes]
    assert [text.name for text in request.texts] == ["all tokens", "prompt", "last tokens", "planted fact"]
    assert {"h2o@50%", "h2o@12.5%", "h2o+int8@25%", "int8", "growing", "paged-int8"} <= set(names)
    assert len(names) == len(set(names))
    shown = replace(
        request, texts=request.texts[2:], modes=tuple(m for m in request.modes if m.name in ("growing", "h2o@25%"))
    )
    view.asked.emit(shown)
    desk.until(lambda: not view.measurement.is_waiting)
    rows = [each.row for each in desk.models.measurements.sweep.answers]
    assert [(row.cache, row.text) for row in rows] == [
        (mode, text) for text in ("last tokens", "planted fact") for mode in ("growing", "h2o@25%")
    ]
    heads = [head.text for head in view.table.cells.heads]
    assert heads[-2:] == ["told", "text"]
    fact = next(cells for cells in view.table.cells.rows if cells[-1].text == "planted fact")
    assert fact[0].text == "Growing"
    assert fact[-2].text.endswith("%")
    assert {cells[0].text for cells in view.table.cells.rows} == {"Growing", "H2O @25%"}
    view.choose(PLOT)
    view.quality.choose("forgotten")
    QApplication.processEvents()
    assert view.plot.canvas.chart is not None
    assert len(view.plot.canvas.chart.points) == 0, "no fact in the first text"
    view._mark("h2o@25% on planted fact")
    QApplication.processEvents()
    assert len(view.plot.canvas.chart.points) == 2
    assert view.plot.title == "part of the fact forgotten, by KV bytes"
    assert "told" in view.plot.words
    view._source.setCurrentIndex(0)
    view._budgets.setCurrentIndex(2)
    view._codecs.setCurrentIndex(0)
    view.quality.setCurrentIndex(0)


# ---- bytes -------------------------------------------------------------------------------------------------------


def test_a_sweep_tries_the_cache_in_use_too(desk: Desk) -> None:
    """A mode that no preset has stands in the table under its own name, and is measured with the others."""
    cache = cache_named("int8/fp8-token-head")
    desk.run(cache, steps=2)
    view = desk.sweep
    view.steps.setValue(2)
    view.ask()
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


@pytest.mark.parametrize(
    "spec",
    [
        CacheSpec("static", max_length=128),
        CacheSpec("paged"),
        CacheSpec(codec=uniform("kivi-4", residual=32)),
        CacheSpec(retention=RetentionSpec("h2o", budget=12)),
    ],
    ids=["static", "paged", "kivi", "h2o"],
)
def test_every_row_of_the_ledger_adds_up(desk: Desk, spec: CacheSpec) -> None:
    desk.run(spec, steps=20)
    view = desk.window.bytes
    view.choose("sum")
    QTest.qWait(150)
    assert "without a name" not in view._facts.text()
    view.choose(LAYERS)
    heads = [head.text for head in view._table.cells.heads]
    for row in view._table.cells.rows:
        numbers = {head: cell.text.replace(",", "") for head, cell in zip(heads, row, strict=True)}
        room = sum(int(text[1:]) for text in numbers.values() if text.startswith("+"))
        assert int(numbers["stored"]) + room == int(numbers["reserved"])
    view.grab()
