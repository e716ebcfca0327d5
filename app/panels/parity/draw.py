"""A parity report as points: what differs by how much at each step, and whether it may."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from app.draw.scale import Floats, LogScale, log_scale
from engine.wire.records import ParityReport

Quantity = Literal["logits", "kl"]
Ints = npt.NDArray[np.int64]

WITHIN, LOSSY, DEPARTS = range(3)
_LEAST_PITCH = 3.0
_FLOOR = {"logits": -9, "kl": -12}
_SHOWN = {"logits": (-6, -2), "kl": (-6, -2)}


@dataclass(frozen=True, eq=False)
class Points:
    """One point a column: `steps` index the report, `x` and `y` are shares of the plot from its lower left corner,
    `kinds` are WITHIN, LOSSY or DEPARTS. `disagrees` `[columns]`: some step of the column has another top token."""

    steps: Ints
    x: Floats
    y: Floats
    kinds: Ints
    disagrees: npt.NDArray[np.bool_]
    per_column: int
    scale: LogScale


def points(report: ParityReport, quantity: Quantity, pixels: float) -> Points:
    """Where a column holds several steps, the one that differs most is shown: a departure is never hidden."""
    values = (report.max_abs_logit_diff if quantity == "logits" else report.kl).astype(np.float64)
    count = len(values)
    per_column = max(1, int(np.ceil(count * _LEAST_PITCH / max(pixels, 1.0))))
    num_columns = -(-count // per_column)
    padded = np.full(num_columns * per_column, -1.0)
    padded[:count] = np.nan_to_num(values, nan=np.inf, posinf=np.inf)
    steps = padded.reshape(num_columns, per_column).argmax(1) + np.arange(num_columns) * per_column
    other = np.zeros(num_columns * per_column, dtype=np.bool_)
    other[:count] = report.top1_agrees == 0
    extra = [report.tolerance] if quantity == "logits" else []
    scale = log_scale([*values.tolist(), *extra], *_SHOWN[quantity], _FLOOR[quantity])
    return Points(
        steps=steps.astype(np.int64),
        x=(np.arange(num_columns) + 0.5) / max(1, num_columns),
        y=scale.at(values[steps]),
        kinds=kinds(report)[steps],
        disagrees=np.asarray(other.reshape(num_columns, per_column).any(1)),
        per_column=per_column,
        scale=scale,
    )


def kinds(report: ParityReport) -> Ints:
    """What each step's difference is: within rounding, lossy as asked, or a departure."""
    is_beyond = ~(report.max_abs_logit_diff <= report.tolerance)
    return np.where(~is_beyond, WITHIN, np.where(report.may_differ == 1, LOSSY, DEPARTS)).astype(np.int64)


def step_at(found: Points, x: float) -> int | None:
    """The step of the report that a place `0 … 1` points at; of a column the one that is shown."""
    if not len(found.steps):
        return None
    return int(found.steps[min(max(int(x * len(found.steps)), 0), len(found.steps) - 1)])


def column_of(found: Points, step: int) -> int | None:
    """The column that holds a step of the report."""
    column = step // found.per_column
    return column if 0 <= column < len(found.steps) else None
