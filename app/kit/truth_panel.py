"""What the panels that measure have in common."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QPushButton, QSizePolicy, QWidget

from app.kit.panel import Panel
from app.models import Models


class TruthPanel(Panel):
    """A panel that asks the engine for a measurement. Intents: `asked(command)` and `cancelled()`; `applied(CacheSpec)`
    where what was tried is to become the live cache; `rebuild_wanted()` where the rows held cannot answer."""

    asked = Signal(object)
    applied = Signal(object)
    cancelled = Signal()
    rebuild_wanted = Signal()

    def measure(self) -> None:
        """Ask what the panel is there to ask. One that asks all by itself has nothing to add."""


class RebuildOffer(QPushButton):
    """There where a question was refused because rows were dropped: try it on rows rebuilt from the tokens."""

    def __init__(self, models: Models, kind: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._models, self._kind = models, kind
        self.setObjectName("small")
        self.setText("Rebuild exact rows and try there")
        self.setToolTip("One prefill of the same tokens, beside the live cache, which stays as it is")
        self.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
        models.truth.changed.connect(self._refresh)
        self._refresh()

    def _refresh(self) -> None:
        self.setVisible(self._models.truth.can_rebuild(self._kind))


def rebuilt_words(models: Models, was_rebuilt: bool) -> str:
    """What an answer was measured on, where that is not what the live cache holds."""
    status = models.status.now
    drops = status is not None and not status.cache.retention.keeps_all
    return "On exact rows, rebuilt from the tokens." if was_rebuilt and drops else ""


def why_nothing(models: Models, before: str, past: str, few: str) -> str | None:
    """Why nothing can be measured on the live rows, in the panel's words: before the first step, while looking back
    (`{0}` is the step), with a single token; None where it can."""
    now, timeline = models.selection.now, models.timeline
    if timeline.latest is None:
        return before
    if now.step is not None:
        return past.format(now.step)
    return few if timeline.num_tokens(now.seq_id) < 2 else None
