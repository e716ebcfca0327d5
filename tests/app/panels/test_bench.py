"""The bench's panel: curves and cells from rows, and the real window asking, being answered and stopped."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication

from app.draw.axis import Tick
from app.kit.chart.marks import Curve, Dots
from app.kit.rows_view import PLOT
from app.kit.theme import load_fonts
from app.panels.bench import draw, words
from app.panels.bench.chart import bench_chart
from app.panels.bench.view import BenchView
from engine.spec.cache import CacheSpec
from engine.spec.presets import PRESETS, family_of
from engine.wire.commands import Bench
from engine.wire.measurements import Benched, BenchRefused, BenchRow
from tests.app.panels.test_truth_panels import Desk, click


def row(cache: str, context: int, rate: float, batch: int = 1, ttft: float = 5.0, kv: int = 1024) -> BenchRow:
    return BenchRow(
        cache, context, batch, rate, 2.5, 1e3 * batch / rate, ttft, kv, 2 * kv, 0.25, "dynamic", rate / 40, 0.1, 32, 8,
        "cpu", "float32",
    )  # fmt: skip


ROWS = (
    row("dynamic", 512, 40, kv=1 << 20),
    row("int8", 512, 30, kv=1 << 18),
    row("dynamic", 128, 80),
    BenchRefused(
        "static", 2048, 1, "2,048 tokens and 33 steps exceed the model's context of 1,024: shorten one of them."
    ),
    row("int8", 128, 60, batch=4),
)
REQUEST = Bench(tuple((name, PRESETS[name].spec) for name in ("dynamic", "int8", "static")), (128, 512), 32)


def test_a_curve_a_mode_and_batch_by_rising_context() -> None:
    found = draw.curves(ROWS, "tok_per_s")
    assert found.keys == ("dynamic 512 1", "int8 512 1", "dynamic 128 1", "int8 128 4")
    assert found.x.tolist() == [9.0, 9.0, 7.0, 7.0]
    assert found.y.tolist() == pytest.approx(np.log2([40, 30, 80, 60]))
    assert found.series == (("dynamic", 1, (2, 0)), ("int8", 1, (1,)), ("int8", 4, (3,)))
    (x_low, x_high), (y_low, y_high) = found.home
    assert (x_low, x_high) == (6.5, 9.5)
    assert (y_low, y_high) == pytest.approx((np.log2(30) - 0.5, np.log2(80) + 0.5))
    assert draw.curves(ROWS, "kv_bytes").y.tolist() == [20.0, 18.0, 10.0, 10.0]
    nothing = draw.curves((row("none", 16, 10, kv=0), ROWS[0]), "kv_bytes")
    assert nothing.keys == ("dynamic 512 1",)
    shares = draw.curves(ROWS, "overhead_ratio")
    assert shares.y.tolist() == [0.25] * 4
    assert shares.home[1] == (-0.02, 1.03)
    apart = (row("dynamic", 16, 64), row("int8", 16, 32), row("dynamic", 64, 16), row("int8", 64, 15))
    assert draw.curves(apart, "tok_per_s").named == (0, 1)
    assert draw.curves((*apart[2:], row("dynamic", 512, 9), row("int8", 512, 2)), "tok_per_s").named == (2, 3)
    assert draw.curves((), "tok_per_s").home == ((0.0, 1.0), (0.0, 1.0))


def test_the_chart_tells_modes_by_family_and_batches_by_dashes() -> None:
    families = {name: family_of(PRESETS[name].spec) for name in ("dynamic", "int8")}
    chart = bench_chart(draw.curves(ROWS, "kv_bytes"), "kv_bytes", families, {}, "int8 128 4", "32 steps")
    curves = [mark for mark in chart.marks if isinstance(mark, Curve)]
    assert [(c.role, c.is_dashed, c.x.tolist()) for c in curves] == [
        ("good", False, [7.0, 9.0]),
        ("accent", False, [9.0]),
        ("selected", True, [7.0]),
    ]
    ring = [mark for mark in chart.marks if isinstance(mark, Dots)][-1]
    assert (ring.x.tolist(), ring.role) == ([7.0], "text")
    assert chart.x_ticks.ticks(8, 6.5, 9.5) == (Tick(7.0, "128"), Tick(8.0, "256"), Tick(9.0, "512"))
    assert chart.y_ticks.ticks(9, 10, 20)[-1] == Tick(20.0, "1 MiB")
    assert chart.points.tolist() == [[9.0, 20.0], [9.0, 18.0], [7.0, 10.0], [7.0, 10.0]]


def test_cells_stand_under_their_headings() -> None:
    heads = [head.text for head in words.heads((3, True))]
    assert heads[:5] == ["cache", "tokens", "batch", "tok/s ↓", "±"]
    cells = dict(zip(heads, words.cells(ROWS[4], PRESETS["int8"].spec, "int8 128 4"), strict=True))
    assert {name: cell.text for name, cell in cells.items()} == {
        "cache": "INT8", "tokens": "128", "batch": "4", "tok/s ↓": "60.0", "±": "2.5", "ratio": "1.50×",
        "first": "5.00 ms", "KV": "1.0 KiB", "overhead": "25.0 %",
    }  # fmt: skip
    assert cells["cache"].role == "selected"
    refused = words.cells(ROWS[3], PRESETS["static"].spec, "")
    assert [cell.text for cell in refused[:3]] == ["Static", "2,048", "1"]
    assert refused[3].is_wide
    assert "exceed" in refused[3].text


def test_what_it_rests_on_and_where_it_was_stopped() -> None:
    first = Benched(REQUEST, ROWS[0], False)
    assert words.rests_on((first,)) == "32 steps, 8 turns, float32 on cpu"
    assert words.source_words((first,), True) == "measured · 32 steps, 8 turns, float32 on cpu"
    assert words.source_words((first,), False).endswith("stopped after 1 of 6")
    assert words.row_words(ROWS[4], PRESETS["int8"].spec) == "INT8 · 128 tokens × 4 · 60.0 ± 2.5 tok/s · 1.50× dynamic"
    assert words.row_words(ROWS[3], CacheSpec()) == ""


# ---- in the window -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def desk(qapp: QApplication) -> Iterator[Desk]:
    load_fonts()
    desk = Desk(qapp)
    yield desk
    desk.close()


@pytest.fixture
def view(desk: Desk) -> BenchView:
    panel = desk.window.panels["bench"]
    assert isinstance(panel, BenchView)
    desk.window.docks.docks["bench"].raise_()
    QApplication.processEvents()
    return panel


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
    view._on_sorted(3)
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
    assert view.plot.title == "bytes of K and V, by tokens of context"
    at = view.point_keys.index("paged 512 1")
    place = view.plot.canvas.frame.point_of(*chart.points[at])
    click(view.plot.canvas.viewport(), place.x(), place.y())
    assert "512 tokens" in view.plot.words


def test_it_can_be_stopped_and_says_so(desk: Desk, view: BenchView) -> None:
    view.contexts.choose("16,64,256,960")
    view.steps.setValue(40)
    view.ask()
    desk.until(lambda: view.measurement.is_waiting and len(view.rows()) >= 5 and view.rows()[0].context == 16)
    view.button.click()
    desk.until(lambda: not view.measurement.is_waiting)
    assert 5 <= len(view.rows()) < 20
    assert f"stopped after {len(view.rows())} of 20" in view._provenance.whole


def test_what_can_be_chosen_gives_way_in_a_narrow_window(desk: Desk, view: BenchView) -> None:
    """A row of boxes that keeps its width would push the panels beside it out of a window of 1,280 pixels."""
    for name in ("sweep", "bench"):
        assert desk.window.panels[name].minimumSizeHint().width() <= 480
    widest = view.contexts.maximumWidth()
    assert view.contexts.minimumSizeHint().width() < widest
