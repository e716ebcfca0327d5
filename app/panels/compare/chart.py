"""The plots of a comparison: what differs at every step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from app.draw.axis import UNJUDGED, StepPoints, kinds_of, step_points
from app.draw.format import brief
from app.kit.chart.marks import Chart, SelectedLine
from app.kit.chart.plot import step_chart
from app.models.comparison import ComparedPair
from engine.wire.duel import DuelStep
from engine.wire.records import Floats

ComparedQuantity = Literal["kl", "logits", "attention", "rows"]
TITLES: dict[ComparedQuantity, str] = {
    "kl": "KL(A ‖ B), nats",
    "logits": "max |Δ logit|",
    "attention": "attention: total variation",
    "rows": "newest token: error of K or V",
}
_FLOORS: dict[ComparedQuantity, int] = {"kl": -12, "logits": -9, "attention": -9, "rows": -9}


class StepChart(Struct, frozen=True, eq=False):
    """A plot, and the step of each of its points."""

    chart: Chart
    steps: tuple[int, ...]


def value_of(step: DuelStep, quantity: ComparedQuantity) -> float | None:
    """A step's number for a quantity, the largest over layers; None if a side does not have it."""
    match quantity:
        case "kl":
            return step.kl
        case "logits":
            return step.max_abs_logit_diff
        case "attention":
            return largest_of_layers(step.attention)
        case "rows":
            return largest_of_layers(np.concatenate([step.keys, step.values]))


def largest_of_layers(values: Floats) -> float | None:
    """The largest over layers; NaN entries (a side has none) are ignored. None if there is no other."""
    known = values[~np.isnan(values)]
    return float(known.max()) if known.size else None


def points(
    steps: Sequence[DuelStep], compared: ComparedPair, quantity: ComparedQuantity
) -> tuple[StepPoints, tuple[int, ...]]:
    """A point for each step that has the number, and these steps. The line is interrupted at steps without it."""
    found = [(at, step, value) for at, step in enumerate(steps) if (value := value_of(step, quantity)) is not None]
    breaks = tuple(n for n, (one, other) in enumerate(pairwise(found), 1) if other[0] != one[0] + 1)
    numbers = tuple(step.step for _, step, _ in found)
    may_differ = [compared.is_lossy or compared.is_edited(step.num_tokens) for _, step, _ in found]
    kinds = kinds_of(np.array([step.is_beyond_rounding for _, step, _ in found], np.bool_), may_differ)
    kinds[[step.is_beyond_rounding is None for _, step, _ in found]] = UNJUDGED
    disagrees = [step.top1_agrees is False and step.parting is None for _, step, _ in found]
    extra = (compared.tolerance,) if quantity == "logits" else ()
    values, floor = [value for _, _, value in found], _FLOORS[quantity]
    return step_points(numbers, values, kinds, disagrees, floor=floor, extra=extra, breaks=breaks), numbers


def compare_chart(
    steps: Sequence[DuelStep], compared: ComparedPair, quantity: ComparedQuantity, selected: int | None
) -> StepChart:
    """The plot of a quantity; `selected` is a step."""
    found, numbers = points(steps, compared, quantity)
    if quantity == "logits":
        note = f"rounding: up to {brief(compared.tolerance)}"
        chart = step_chart(found, TITLES[quantity], selected, tolerance=compared.tolerance, note=note)
    else:
        chart = step_chart(found, TITLES[quantity], selected)
    if (line := parting_line(steps)) is not None:
        chart = replace(chart, marks=(*chart.marks, line))
    return StepChart(chart, numbers)


def parting_line(steps: Sequence[DuelStep]) -> SelectedLine | None:
    """A line between the last step with the same tokens and the first with others; None if the tokens never differ."""
    others = next((at for at, step in enumerate(steps) if step.parting is not None), 0)
    return SelectedLine((steps[others - 1].step + steps[others].step) / 2, "muted") if others else None
