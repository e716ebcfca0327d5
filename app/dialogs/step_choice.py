"""Which steps: all of them, one, or a range."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QSpinBox, QWidget

from app.draw.format import thousands
from app.kit.boxes import row
from app.kit.changes import on_change
from app.kit.labels import plain_label
from app.kit.theme import font_fixed
from app.kit.units import inset
from app.models.export_plan import records_between
from app.models.path import Path

ALL, ONE, RANGE = range(3)


class StepChoice(QWidget):
    """`changed()` whenever other steps are chosen. Looking back, the step that is looked at is offered first."""

    changed = Signal()

    def __init__(self, timeline: Path, looked_at: int | None, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._timeline = timeline
        first, latest = timeline.first, timeline.latest
        self._one = looked_at if looked_at is not None else latest.step if latest is not None else 0
        self._box, self._first, self._last, self._to = QComboBox(), QSpinBox(), QSpinBox(), plain_label("to")
        count = len(timeline)
        self._box.addItem(
            "all, and the cache as it is now" if count == 1 else f"all {thousands(count)}, the cache as now"
        )
        self._box.addItem(f"step {self._one} alone" + (", which is looked at" if looked_at is not None else ""))
        self._box.addItem("from one to another")
        self._box.setAccessibleName("Steps")
        for field, name in ((self._first, "First step"), (self._last, "Last step")):
            field.setRange(first.step if first is not None else 0, latest.step if latest is not None else 0)
            field.setFont(font_fixed())
            inset(field)
            field.setAccessibleName(name)
        self._first.setValue(self._first.minimum())
        self._last.setValue(self._one)
        row((self._box, 1), self._first, self._to, self._last, spacing=8, on=self)
        self._box.setCurrentIndex(ALL if looked_at is None else ONE)
        self._on_box()
        on_change(self._on_box, self._box)
        on_change(self.changed, self._box, self._first, self._last)

    @property
    def range(self) -> tuple[int | None, int | None]:
        """The first and the last step, None for the ends of what there is."""
        match self._box.currentIndex():
            case 0:
                return None, None
            case 1:
                return self._one, self._one
        return min(self._first.value(), self._last.value()), max(self._first.value(), self._last.value())

    @property
    def count(self) -> int:
        """How many steps these are."""
        return len(records_between(self._timeline.records, *self.range))

    def _on_box(self) -> None:
        for widget in (self._first, self._to, self._last):
            widget.setVisible(self._box.currentIndex() == RANGE)
