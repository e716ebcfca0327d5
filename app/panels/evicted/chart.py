"""The charts of evicted rows: the scores of one eviction on an axis, and policy regret as a scatter plot."""

from __future__ import annotations

import numpy as np

from app.draw.axis import FixedTicks, LinearTicks, Tick
from app.draw.format import brief, decimal
from app.kit.chart.marks import Chart, ChartMark, Curve, Dots, ShadedSpan
from app.panels.evicted import draw
from engine.wire.evictions import Eviction
from engine.wire.measurements import Regret

_DOT = 6.0
_BINS = 80  # dots within one of so many parts of the axis are stacked
_LEAST_HIGH = 8


def rank_chart(eviction: Eviction, position: int | None) -> Chart:
    """The scores of the evicted rows, with `position` marked, and of those that stayed (quantiles, if these are
    many)."""
    found = draw.ranks(eviction, 1 / _BINS)
    heights = found.victim_heights.astype(np.float64) + 0.6
    top = max(_LEAST_HIGH, float(heights.max(initial=0)) + 1)
    marks: list[ChartMark] = []
    if found.border is not None:
        marks.append(ShadedSpan(found.low, found.border, "warning", "lowest kept"))
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


MEANING = (
    "Each mark is a row, or a page of rows. Rank correlation is Spearman's, over all marks.\n"
    "○ kept whatever the score: sinks and the latest\n■ a low score, and yet among those that matter most"
)
_MANY = 200
_ENDS = FixedTicks((Tick(0.08, "← goes first"), Tick(0.86, "the rule keeps it longest →")))


def regret_chart(regret: Regret, num_rows: int, marked: int | None) -> Chart:
    """The scatter plot; the dot `marked` has a ring. `num_rows` in the cache determines which rows the rule never
    drops."""
    found = draw.scatter(regret, num_rows)
    size = 6.0 if len(found.x) < _MANY else 4.5
    x, y, missed, kept = found.x, found.y, found.is_missed, found.is_protected
    plain = ~missed & ~kept
    marks: list[ChartMark] = [
        Dots(x[kept], y[kept], "muted", size=size),
        Dots(x[plain], y[plain], "accent", size=size, fill="accent", alpha=200),
        Dots(x[missed], y[missed], "bad", "s", size, fill="bad"),
    ]
    if marked is not None and marked < len(x):
        marks.append(Dots(x[marked : marked + 1], y[marked : marked + 1], "selected", size=size + 7))
    note = f"rank correlation {decimal(regret.rank_correlation, is_signed=True)}"
    if kept.any():
        note += f" · ○ {int(kept.sum())} never dropped"
    return Chart(
        tuple(marks),
        np.column_stack([x, y]),
        ((-0.03, 1.03), (-0.05, 1.05)),
        _ENDS,
        found.scale,
        "KL without it, nats",
        note,
        reach=9.0,
        can_zoom_y=True,
    )
