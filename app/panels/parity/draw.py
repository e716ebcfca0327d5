"""A parity report as points: what differs by how much at each step, and whether it may."""

from __future__ import annotations

from typing import Literal

from app.draw.step_points import Ints, StepPoints, kinds_of, step_points
from engine.wire.measurements import ParityReport

Quantity = Literal["logits", "kl"]
_FLOOR = {"logits": -9, "kl": -12}


def points(report: ParityReport, quantity: Quantity) -> StepPoints:
    """Every step of the report; what is no number stands at the top."""
    values = report.max_abs_logit_diff if quantity == "logits" else report.kl
    extra = (report.tolerance,) if quantity == "logits" else ()
    other = report.top1_agrees == 0
    return step_points(report.steps, values, kinds(report), other, floor=_FLOOR[quantity], extra=extra)


def kinds(report: ParityReport) -> Ints:
    """What each step's difference is: within rounding, lossy as asked, or a departure."""
    return kinds_of(~(report.max_abs_logit_diff <= report.tolerance), report.may_differ == 1)
