"""Builds the panels that measure and compare when they are first shown, so that the window opens faster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.kit.measurement import MeasuringView
from app.models import Models

if TYPE_CHECKING:
    from app.kit.panel import Panel


def truth_panels(models: Models) -> dict[str, MeasuringView[Any]]:
    """The panels of the Truth layout, by name."""
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
    """The panels of the Compare layout, by name: the pictures of two runs, and their steps."""
    from app.panels.compare.steps_view import CompareStepsView
    from app.panels.compare.view import CompareView

    return {"compare": CompareView(models), "compared_steps": CompareStepsView(models)}
