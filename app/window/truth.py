"""The panels that measure what a cache mode changes. Built when they are first asked for: no first picture has them."""

from __future__ import annotations

from typing import Any

from app.kit.measurement import MeasuringView
from app.models import Models


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
