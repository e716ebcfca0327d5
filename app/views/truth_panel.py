"""What the panels that measure have in common."""

from __future__ import annotations

from PySide6.QtCore import Signal

from app.models import Models
from app.views.panel import Panel


class TruthPanel(Panel):
    """A panel that asks the engine for a measurement. Intents: `asked(command)` and `cancelled()`; `applied(CacheSpec)`
    where what was tried is to become the live cache."""

    asked = Signal(object)
    applied = Signal(object)
    cancelled = Signal()

    def measure(self) -> None:
        """Ask what the panel is there to ask. One that asks all by itself has nothing to add."""


def why_nothing(models: Models, before: str, past: str, few: str) -> str | None:
    """Why nothing can be measured on the live rows, in the panel's words: before the first step, while looking back
    (`{0}` is the step), with a single token; None where it can."""
    now, timeline = models.selection.now, models.timeline
    if timeline.latest is None:
        return before
    if now.step is not None:
        return past.format(now.step)
    return few if timeline.num_tokens(now.seq_id) < 2 else None
