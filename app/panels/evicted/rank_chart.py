"""One head's drop on an axis of scores: the rows that went, stacked, and those that stayed."""

from __future__ import annotations

import numpy as np

from app.draw.axis import FixedTicks, LinearTicks
from app.draw.format import brief
from app.kit.chart.marks import Chart, Curve, Dots, Mark, Span
from app.panels.evicted import draw
from engine.wire.evictions import Eviction

_DOT = 6.0
_BINS = 80  # dots that fall into one of so many parts of the axis are stacked
_LEAST_HIGH = 8


def rank_chart(eviction: Eviction, position: int | None) -> Chart:
    """`position` is marked among those that went. Of many that stayed their quantiles stand for them."""
    found = draw.ranks(eviction, 1 / _BINS)
    heights = found.victim_heights.astype(np.float64) + 0.6
    top = max(_LEAST_HIGH, float(heights.max(initial=0)) + 1)
    marks: list[Mark] = []
    if found.border is not None:
        marks.append(Span(found.low, found.border, "warning", "lowest kept"))
    for score in found.survivors:
        marks.append(Curve(np.array([score, score]), np.array([0.0, 0.85 * top]), "page_used", 2.0, 190))
    marks.append(Dots(found.victims, heights, "warning", size=_DOT, fill="warning"))
    chosen = eviction.positions == position if position is not None else np.zeros(len(heights), np.bool_)
    if chosen.any():
        marks.append(Dots(found.victims[chosen], heights[chosen], "text", size=_DOT + 3, fill="selected"))
    note = "● went · | stayed" if found.survivors.size else "● went"
    margin = 0.03 * (found.high - found.low)
    return Chart(
        tuple(marks),
        np.column_stack([found.victims, heights]),
        ((found.low - margin, found.high + margin), (0.0, top)),
        LinearTicks(brief),
        FixedTicks(()),
        "score",
        note,
        reach=9.0,
    )
