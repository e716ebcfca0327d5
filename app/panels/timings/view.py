"""Where each step's time went, step by step, and what looking at it cost."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QWidget

from app.draw.format import milliseconds, percent, thousands
from app.kit.provenance import Provenance, source_of
from app.kit.reader import SELECTION, STEPS
from app.kit.theme import Theme
from app.kit.view import View
from app.models import Models
from app.panels.timings import draw
from app.panels.timings.canvas import PhaseLegend, TimingCanvas
from app.panels.timings.draw import StepTimes, StepTimesTable
from engine.wire.records import StepRecord

ROOM_BESIDE = 235  # pixels of the title bar that the legend leaves to the title and the source


@dataclass(frozen=True)
class Shown:
    """The times of all steps, which of them is selected, and the one whose numbers are told."""

    times: StepTimes
    selected: int | None
    told: StepRecord


class TimingsView(View[Shown]):
    """Clicking a bar looks at that step; pointing at one tells its numbers."""

    title = "Step time"
    follows = (SELECTION, STEPS)

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(models, theme, parent)
        self._table = StepTimesTable()
        self._pointed: int | None = None
        self._canvas = TimingCanvas()
        self._canvas.setAccessibleName("Time of every step, split into phases")
        self._legend = PhaseLegend()
        self.set_body(self._canvas)
        self.add_to_strip(self._legend)
        self._canvas.picked.connect(self._on_picked)
        self._canvas.pointed.connect(self._on_pointed)
        self.follow(models)

    def read(self) -> Shown | str:
        timeline, step = self._models.timeline, self._models.selection.now.step
        times = self._table.take(timeline.records)
        told = self._record(self._pointed) or timeline.at(step)
        if told is None:
            return "Each step's time, phase by phase, appears here."
        return Shown(times, None if step is None else self._index_of(step), told)

    def provenance(self, state: Shown) -> Provenance:
        return source_of(self._models, "recorded", "", state.told.step)

    def show_state(self, state: Shown) -> None:
        record, times = state.told, state.times
        share = draw.looking_share(times.millis, times.is_prefill)
        self._legend.set_names(
            ("forward", "prepare", "sample", "looking" if share is None else f"looking {percent(share)}")
        )
        step = f"step {thousands(record.step)}"
        self._canvas.show_steps(
            times, state.selected, f"{step} · {record.phase} · {milliseconds(record.timings.total_ms)}"
        )
        forward, prepare, sample, observe = (milliseconds(ms) for ms in draw.phase_row(record))
        words = f"{step}: forward {forward}, prepare {prepare}, sample {sample}, looking {observe}"
        self._canvas.setToolTip(words)
        self._canvas.setAccessibleDescription(words)

    def _record(self, index: int | None) -> StepRecord | None:
        records = self._models.timeline.records
        return records[index] if index is not None and index < len(records) else None

    def _index_of(self, step: int) -> int | None:
        """Which record is that of a step."""
        first = self._models.timeline.first
        record = self._models.timeline.record(step)
        if first is None or record is None:
            return None
        # steps are numbered without gaps; where they are not, count
        if self._record(index := step - first.step) is record:
            return index
        return next((i for i, other in enumerate(self._models.timeline) if other is record), None)

    def _on_picked(self, index: int) -> None:
        if (record := self._record(index)) is not None:
            is_newest = record is self._models.timeline.latest
            self._models.selection.update(step=None if is_newest else record.step)

    def _on_pointed(self, index: int | None) -> None:
        if index != self._pointed:
            self._pointed = index
            self.refresh()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._legend.set_room(self.width() - ROOM_BESIDE)
