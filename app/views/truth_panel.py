"""What the panels that measure have in common."""

from __future__ import annotations

from PySide6.QtCore import Signal

from app.views.panel import Panel


class TruthPanel(Panel):
    """A panel that asks the engine for a measurement. Intents: `asked(command)` and `cancelled()`; `applied(CacheSpec)`
    where what was tried is to become the live cache."""

    asked = Signal(object)
    applied = Signal(object)
    cancelled = Signal()

    def measure(self) -> None:
        """Ask what the panel is there to ask. One that asks all by itself has nothing to add."""
