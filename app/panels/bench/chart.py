"""The plot of a bench: a quantity over the length of the context, with a curve per mode."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from app.draw.axis import ByteTicks, LinearTicks
from app.draw.format import percent, thousands, tick_size
from app.kit.chart.marks import Chart, ChartMark, Curve, Dots, Painted
from app.kit.chart.point_names import PointNames
from app.panels.bench.draw import BenchQuantity, Curves
from engine.spec.presets import Family

_DOT, _RING = 6.0, 13.0
ROLES: Mapping[Family, str] = {"lossless": "good", "quantised": "accent", "evicting": "warning"}
TITLES: Mapping[BenchQuantity, str] = {
    "tok_per_s": "tokens a second, by tokens of context",
    "ttft_ms": "milliseconds to the first token, by tokens of context",
    "kv_bytes": "bytes of K and V, by tokens of context",
    "overhead_ratio": "part of a step that is overhead, by tokens of context",
}


def bench_chart(
    curves: Curves,
    quantity: BenchQuantity,
    families: Mapping[str, Family],
    labels: Mapping[str, str],
    marked: str,
    rests_on: str,
) -> Chart:
    """Make the chart. `labels` are the names of modes; the row `marked` has a ring; `rests_on` says how much was
    measured."""
    is_marked = np.array([key == marked for key in curves.keys], dtype=np.bool_)
    marks: list[ChartMark] = []
    for cache, batch, points in curves.series:
        x, y = curves.x[list(points)], curves.y[list(points)]
        role = "selected" if is_marked[list(points)].any() else ROLES[families[cache]]
        marks += [Curve(x, y, role, 1.3, is_dashed=batch > 1), Dots(x, y, role, size=_DOT, fill=role)]
    marks.append(Dots(curves.x[is_marked], curves.y[is_marked], "text", size=_RING))
    ends = list(curves.named)
    texts = [labels.get(cache, cache) + (f" × {batch}" if batch > 1 else "") for cache, batch, _ in curves.series]
    first = [n for n, (_, _, points) in enumerate(curves.series) if is_marked[list(points)].any()]
    marks.append(Painted(PointNames(curves.x[ends], curves.y[ends], texts, first, first).paint))
    return Chart(
        tuple(marks),
        np.column_stack([curves.x, curves.y]),
        curves.home,
        ByteTicks(thousands),
        LinearTicks(percent) if curves.is_share else ByteTicks(tick_size if quantity == "kv_bytes" else thousands),
        TITLES[quantity],
        rests_on,
        reach=9.0,
        can_zoom_y=True,
    )
