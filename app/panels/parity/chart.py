"""The plots of a parity report: how large the difference is at each step, and whether it is allowed."""

from __future__ import annotations

from typing import Literal

from app.draw.format import brief
from app.draw.step_points import Ints, StepPoints, kinds_of, step_points
from app.kit.chart.marks import Chart
from app.kit.chart.step_chart import step_chart
from engine.wire.measurements import ParityReport

ParityQuantity = Literal["logits", "kl"]
TITLES: dict[ParityQuantity, str] = {"logits": "max |Δ logit|", "kl": "KL, nats"}
_FLOOR = {"logits": -9, "kl": -12}


def parity_chart(report: ParityReport, quantity: ParityQuantity, selected: int | None) -> Chart:
    """The plot of a quantity; `selected` is a step."""
    found = points(report, quantity)
    if quantity == "kl":
        return step_chart(found, TITLES[quantity], selected)
    note = f"rounding, {report.dtype}: up to {brief(report.tolerance)}"
    return step_chart(found, TITLES[quantity], selected, tolerance=report.tolerance, note=note)


def points(report: ParityReport, quantity: ParityQuantity) -> StepPoints:
    """The points of all steps of the report; NaN and Inf are at the top."""
    values = report.max_abs_logit_diff if quantity == "logits" else report.kl
    extra = (report.tolerance,) if quantity == "logits" else ()
    other = report.top1_agrees == 0
    return step_points(report.steps, values, kinds(report), other, floor=_FLOOR[quantity], extra=extra)


def kinds(report: ParityReport) -> Ints:
    """Each step's kind: within rounding, lossy as asked, or a departure."""
    return kinds_of(~(report.max_abs_logit_diff <= report.tolerance), report.may_differ == 1)
