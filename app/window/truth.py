"""The panels that measure and compare. Built when they are first asked for: no first picture has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.kit.measurement import MeasuringView
from app.models import Models

if TYPE_CHECKING:
    from app.kit.panel import Panel


def truth_panels(models: Models) -> dict[str, MeasuringView[Any]]:
    """The panels by their names in the layouts."""
    from app.panels.bench.view import BenchView
    from app.panels.damage.view import DamageView
    from app.panels.evicted.view import EvictedView
    from app.panels.parity.view import ParityView
    from app.panels.sweep.view import SweepView
    from app.panels.what_if.view import WhatIfView

    return {
        "what_if": WhatIfView(models),
        "evicted": EvictedView(models),
        "damage": DamageView(models),
        "parity": ParityView(models),
        "sweep": SweepView(models),
        "bench": BenchView(models),
    }


def compare_panels(models: Models) -> dict[str, Panel]:
    """Two runs side by side: their pictures, and their steps."""
    from app.panels.compare.steps_view import CompareStepsView
    from app.panels.compare.view import CompareView

    return {"compare": CompareView(models), "compared_steps": CompareStepsView(models)}
