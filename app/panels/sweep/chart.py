"""The plot of a sweep: bytes against damage with a dot per cache mode, and the Pareto front."""

from __future__ import annotations

import numpy as np

from app.draw.axis import ByteTicks
from app.draw.format import tick_size
from app.kit.chart.marks import Band, Chart, ChartMark, Curve, Dots, Painted
from app.kit.chart.point_names import PointNames
from app.panels.sweep import draw
from app.panels.sweep.draw import Cloud, Quality

_DOT, _RING = 8.0, 15.0
_MARGIN, _FLOOR = 0.45, -0.06


TITLES: dict[Quality, str] = {
    "kl": "mean KL in nats, by KV bytes",
    "disagreement": "steps with another most probable token, by KV bytes",
    "perplexity": "perplexity, by KV bytes",
    "forgotten": "part of the fact forgotten, by KV bytes",
}


def sweep_chart(cloud: Cloud, quality: Quality, labels: dict[str, str], marked: str, rests_on: str) -> Chart:
    """Make the chart. `labels` are the names of modes; the one `marked` has a ring; `rests_on` says how much was
    measured."""
    is_marked = np.array([name == marked for name in cloud.names], dtype=np.bool_)
    texts = [labels.get(name, name) for name in cloud.names]
    marks: list[ChartMark] = [
        *([Band(_FLOOR, 0.045, "good")] if quality != "perplexity" else []),
        Curve(*draw.steps_of(cloud), "selected", 1.3),
        _dots(cloud, cloud.is_lossless, "good", "panel"),
        _dots(cloud, ~cloud.is_lossless, "accent", "accent"),
        Painted(PointNames(cloud.x, cloud.y, texts, cloud.front, np.flatnonzero(is_marked).tolist()).paint),
    ]
    marks.append(Dots(cloud.x[is_marked], cloud.y[is_marked], "text", size=_RING))
    low, high = (float(cloud.x.min()), float(cloud.x.max())) if len(cloud.x) else (0.0, 1.0)
    return Chart(
        tuple(marks),
        np.column_stack([cloud.x, cloud.y]),
        ((low - _MARGIN, high + _MARGIN), (_FLOOR, 1.03)),
        ByteTicks(tick_size),
        cloud.scale,
        TITLES[quality],
        f"— best for its bytes, over {rests_on}",
        reach=9.0,
        can_zoom_y=True,
    )


def _dots(cloud: Cloud, which: np.ndarray, role: str, fill: str) -> Dots:
    return Dots(cloud.x[which], cloud.y[which], role, size=_DOT, fill=fill)
