"""What the panels that measure have in common."""

from __future__ import annotations

from PySide6.QtCore import Signal

from app.views.panel import Panel


class TruthPanel(Panel):
    """A panel that asks the engine for a measurement. Intents: `asked(command)`, `cancelled()`."""

    asked = Signal(object)
    cancelled = Signal()
