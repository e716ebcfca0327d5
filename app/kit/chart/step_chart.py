"""The plot of a difference per step: one dot per step, over a band that shows what rounding may cause."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np

from app.draw.axis import LinearTicks
from app.draw.format import thousands
from app.draw.step_points import DEPARTS, LOSSY, UNJUDGED, WITHIN, StepPoints
from app.kit.chart.marks import Band, Chart, ChartMark, Curve, Dots, SelectedLine

ROLES = {WITHIN: "accent", LOSSY: "warning", DEPARTS: "bad", UNJUDGED: "muted"}
_CROSSES = -0.06  # y of the crosses below steps with another top token
_MANY = 400


def step_chart(
    found: StepPoints, title: str, selected: int | None, *, tolerance: float | None = None, note: str = ""
) -> Chart:
    """Make the chart. `selected` is a step; `tolerance` the difference that rounding may cause, which `note` explains.
    Steps that depart are drawn last and as squares, so that they are never hidden, nor known by colour alone."""
    size = 5.0 if len(found.x) < _MANY else 3.0
    ends = pairwise((0, *found.breaks, len(found.x)))
    marks: list[ChartMark] = [
        Curve(found.x[start:stop], found.y[start:stop], "accent", alpha=90) for start, stop in ends
    ]
    for kind in (UNJUDGED, WITHIN, LOSSY, DEPARTS):
        mine = found.kinds == kind
        symbol: Literal["s", "o"] = "s" if kind == DEPARTS else "o"
        role = ROLES[kind]
        marks.append(Dots(found.x[mine], found.y[mine], role, symbol, size + 2 * (kind == DEPARTS), fill=role))
    other = found.x[found.disagrees]
    marks.append(Dots(other, np.full(len(other), _CROSSES), "bad", "x", 5.0, fill="bad"))
    if tolerance is not None:
        marks.append(Band(0.0, float(found.scale.at(tolerance)), "good", has_line=True))
    if selected is not None:
        marks.append(SelectedLine(selected))
    first, last = (float(found.x.min()), float(found.x.max())) if len(found.x) else (0.0, 1.0)
    return Chart(
        tuple(marks),
        np.column_stack([found.x, found.y]),
        ((first - 0.5, last + 0.5), (-0.1, 1.03)),
        LinearTicks(_step_name, least=1),
        found.scale,
        title,
        note,
        "good",
    )


def _step_name(step: float) -> str:
    return thousands(round(step))
