"""A parity report as points: what differs by how much at each step, and whether it may."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from app.draw.scale import Floats, LogScale, log_scale
from engine.wire.measurements import ParityReport

Quantity = Literal["logits", "kl"]
Ints = npt.NDArray[np.int64]

WITHIN, LOSSY, DEPARTS = range(3)
_FLOOR = {"logits": -9, "kl": -12}
_SHOWN = (-6, -2)


@dataclass(frozen=True, eq=False)
class Points:
    """One point a step: `x` the step, `y` a share of the plot from below on `scale`, `kinds` WITHIN, LOSSY or DEPARTS.
    `disagrees`: its top token is another one."""

    x: Floats
    y: Floats
    kinds: Ints
    disagrees: npt.NDArray[np.bool_]
    scale: LogScale


def points(report: ParityReport, quantity: Quantity) -> Points:
    """Every step of the report; what is no number stands at the top."""
    values = (report.max_abs_logit_diff if quantity == "logits" else report.kl).astype(np.float64)
    extra = [report.tolerance] if quantity == "logits" else []
    scale = log_scale([*values.tolist(), *extra], *_SHOWN, _FLOOR[quantity])
    return Points(
        x=report.steps.astype(np.float64),
        y=scale.at(values),
        kinds=kinds(report),
        disagrees=report.top1_agrees == 0,
        scale=scale,
    )


def kinds(report: ParityReport) -> Ints:
    """What each step's difference is: within rounding, lossy as asked, or a departure."""
    is_beyond = ~(report.max_abs_logit_diff <= report.tolerance)
    return np.where(~is_beyond, WITHIN, np.where(report.may_differ == 1, LOSSY, DEPARTS)).astype(np.int64)
