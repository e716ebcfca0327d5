"""The chart of the bench: modes by family, batches by dashes."""

from __future__ import annotations

from app.draw.axis import Tick
from app.kit.chart import Curve, Dots
from app.panels.bench import bench_chart, curves_of
from engine.spec.cache import PRESETS, family_of
from tests.app.panels.bench.rows import ROWS


def test_the_chart_tells_modes_by_family_and_batches_by_dashes() -> None:
    families = {name: family_of(PRESETS[name].spec) for name in ("dynamic", "int8")}
    chart = bench_chart(curves_of(ROWS, "kv_bytes"), "kv_bytes", families, {}, "int8 128 4", "32 steps")
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
