"""What the panels share that ask the engine for a measurement: the button that asks, and why nothing can be asked."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QRectF, Signal
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QPushButton, QSizePolicy, QWidget

from app.kit.labels import plain_tip
from app.kit.reader import State
from app.kit.theme import current_theme
from app.kit.view import View
from app.models import Models
from app.models.measurement import Measurement


class MeasuringView(View[State]):
    """A view that asks the engine for a measurement. Intents: `asked(command)` and `cancelled()`; `applied(CacheSpec)`
    where what was tried is to become the live cache; `rebuild_wanted()` where the rows held cannot answer."""

    asked = Signal(object)
    applied = Signal(object)
    cancelled = Signal()
    rebuild_wanted = Signal()

    def measure(self) -> None:
        """Ask what the panel is there to ask. One that asks all by itself has nothing to add."""


class AskButton(QPushButton):
    """Says what it asks, or, while that is being measured, how far it is and that a click stops it."""

    asked = Signal()
    stopped = Signal()

    def __init__(self, measurement: Measurement[Any], words: str, parent: QWidget | None = None) -> None:
        super().__init__(words, parent)
        self._measurement, self._words = measurement, words
        self.setObjectName("small")
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.clicked.connect(self._on_clicked)
        measurement.changed.connect(self.refresh)

    def set_reason(self, reason: str) -> None:
        """Why it cannot be asked now; empty when it can."""
        self.setEnabled(not reason or self._measurement.is_waiting)
        self.setToolTip(plain_tip(reason))

    def refresh(self) -> None:
        found = self._measurement
        progress = f"Stop  {found.done}/{found.total}" if found.total else "Stop"
        text = progress if found.is_waiting else self._words
        if text != self.text():
            self.setText(text)
        self.update()

    def _on_clicked(self) -> None:
        if self._measurement.is_waiting:
            self.stopped.emit()
        else:
            self.asked.emit()

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        share = self._measurement.share
        if share is not None:
            line = QRectF(3, self.height() - 3, (self.width() - 6) * share, 2)
            QPainter(self).fillRect(line, current_theme().color("accent"))


class RebuildOffer(QPushButton):
    """There where a question was refused because rows were dropped: try it on rows rebuilt from the tokens."""

    def __init__(self, measurement: Measurement[Any], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._measurement = measurement
        self.setObjectName("small")
        self.setText("Rebuild exact rows and try there")
        self.setToolTip("One prefill of the same tokens, beside the live cache, which stays as it is")
        self.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
        measurement.changed.connect(self._refresh)
        self._refresh()

    def _refresh(self) -> None:
        self.setVisible(self._measurement.can_rebuild)


def rebuilt_words(models: Models, was_rebuilt: bool) -> str:
    """What an answer was measured on, where that is not what the live cache holds."""
    status = models.status.now
    drops = status is not None and not status.cache.retention.keeps_all
    return "On exact rows, rebuilt from the tokens." if was_rebuilt and drops else ""


def out_of_date_words(measurement: Measurement[Any]) -> str:
    """Why an answer that was there is gone, before the invitation to ask again; empty where none is."""
    return "What was measured is out of date: the cache has changed since. " if measurement.is_out_of_date else ""


def why_nothing(models: Models, before: str, past: str, few: str) -> str | None:
    """Why nothing can be measured on the live rows, in the panel's words: before the first step, while looking back
    (`{0}` is the step), with a single token; None where it can."""
    now, timeline = models.selection.now, models.timeline
    if timeline.latest is None:
        return before
    if now.step is not None:
        return past.format(now.step)
    return few if timeline.num_tokens(now.seq_id) < 2 else None
