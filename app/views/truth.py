"""The panels that measure what a cache mode changes. Built when they are first asked for: no first picture has them."""

from __future__ import annotations

from app.models import Models
from app.theme import Theme
from app.views.truth_panel import TruthPanel


def truth_panels(models: Models, theme: Theme) -> dict[str, TruthPanel]:
    """The panels by their names in the layouts."""
    from app.views.damage import DamageView
    from app.views.evicted import EvictedView
    from app.views.parity import ParityView
    from app.views.sweep import SweepView
    from app.views.what_if import WhatIfView

    return {
        "what_if": WhatIfView(models, theme),
        "evicted": EvictedView(models, theme),
        "damage": DamageView(models, theme),
        "parity": ParityView(models, theme),
        "sweep": SweepView(models, theme),
    }
