"""A field that chooses steps: all, one, or a range."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from app.kit.boxes import row
from app.kit.changes import on_change
from app.kit.fields import choice_field, whole_field
from app.kit.labels import plain_label
from app.models.export_plan import records_between
from app.models.timeline import Path

ALL, ONE, RANGE = range(3)


class StepChoice(QWidget):
    """Choose steps. Where an earlier step is shown, that one is offered first. Signal: `changed()`."""

    changed = Signal()

    def __init__(self, timeline: Path, looked_at: int | None) -> None:
        super().__init__()
        self._timeline = timeline
        first, latest = timeline.first, timeline.latest
        self._one = looked_at if looked_at is not None else latest.step if latest is not None else 0
        one = f"step {self._one} alone" + (", which is looked at" if looked_at is not None else "")
        choices = (
            (ALL, "all, and the cache as it is now"),  # how many is told with the size: a run makes more
            (ONE, one),
            (RANGE, "from one to another"),
        )
        self._box = choice_field("Steps", choices, ALL if looked_at is None else ONE)
        low, high = (each.step if each is not None else 0 for each in (first, latest))
        self._first, self._to = whole_field("First step", low, low, high), plain_label("to")
        self._last = whole_field("Last step", self._one, low, high)
        row((self._box, 1), self._first, self._to, self._last, spacing=8, on=self)
        self._on_box()
        on_change(self._on_box, self._box)
        on_change(self.changed, self._box, self._first, self._last)

    @property
    def range(self) -> tuple[int | None, int | None]:
        """The first and the last step; None for both where all steps are chosen."""
        match self._box.currentIndex():
            case 0:
                return None, None
            case 1:
                return self._one, self._one
        return min(self._first.value(), self._last.value()), max(self._first.value(), self._last.value())

    @property
    def count(self) -> int:
        """How many steps are chosen."""
        return len(records_between(self._timeline.records, *self.range))

    def _on_box(self) -> None:
        for widget in (self._first, self._to, self._last):
            widget.setVisible(self._box.currentIndex() == RANGE)
