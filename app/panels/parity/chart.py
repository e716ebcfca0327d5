"""The plot of a parity report."""

from __future__ import annotations

from app.draw.format import brief
from app.kit.chart.marks import Chart
from app.kit.chart.step_chart import step_chart
from app.panels.parity import draw
from app.panels.parity.draw import Quantity
from engine.wire.measurements import ParityReport

TITLES: dict[Quantity, str] = {"logits": "max |Δ logit|", "kl": "KL, nats"}


def parity_chart(report: ParityReport, quantity: Quantity, selected: int | None) -> Chart:
    """`selected` is a step."""
    found = draw.points(report, quantity)
    if quantity == "kl":
        return step_chart(found, TITLES[quantity], selected)
    note = f"rounding, {report.dtype}: up to {brief(report.tolerance)}"
    return step_chart(found, TITLES[quantity], selected, tolerance=report.tolerance, note=note)
