"""Where each step's time went, step by step, and what looking at it cost."""

from __future__ import annotations

import numpy as np
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QWidget

from app.draw.format import milliseconds, percent, thousands
from app.kit.panel import Panel
from app.kit.provenance import tell_source
from app.kit.theme import Theme
from app.models import Models
from app.panels.timings import draw
from app.panels.timings.canvas import Legend, TimingCanvas
from engine.wire.records import StepRecord


class TimingsView(Panel):
    """Clicking a bar looks at that step."""

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, "Step time", parent)
        self._models = models
        self._millis = np.zeros((256, 4), np.float32)
        self._is_prefill = np.zeros(256, np.bool_)
        self._count = 0
        self._last: StepRecord | None = None
        self._drawn: tuple[object, ...] = ()
        self._pointed: int | None = None
        self._canvas = TimingCanvas(theme)
        self._canvas.setAccessibleName("Time of every step, split into phases")
        self._legend = Legend(theme, self._legend_names(None))
        self.set_body(self._canvas)
        self.add_to_strip(self._legend)
        self._canvas.picked.connect(self._on_picked)
        self._canvas.pointed.connect(self._on_pointed)
        models.selection.changed.connect(self._refresh)
        models.timeline.legible.connect(self._refresh)
        models.timeline.reset.connect(self._on_reset)
        self._refresh()

    # ---- intents -------------------------------------------------------------------------------------------------

    def set_theme(self, theme: Theme) -> None:
        super().set_theme(theme)
        self._legend.set_theme(theme)
        self._refresh()

    def _on_picked(self, index: int) -> None:
        records = self._models.timeline.records
        if index < len(records):
            is_newest = index == len(records) - 1
            self._models.selection.update(step=None if is_newest else records[index].step)

    def _on_pointed(self, index: int | None) -> None:
        if index != self._pointed:
            self._pointed = index
            self._tell()

    def _on_reset(self) -> None:
        self._count, self._last, self._pointed = 0, None, None
        self._refresh()

    # ---- showing -------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        if not self.isVisible():
            return
        self._take_new()
        if not self._count:
            self.set_empty("Each step's time, phase by phase, appears here.")
            self.set_provenance("")
            self._drawn = ()
            return
        self.set_empty(None)
        timeline = self._models.timeline
        step = self._models.selection.now.step
        selected = None if step is None else self._index_of(step)
        key = (self._count, timeline.latest, selected, self.theme)
        if key == self._drawn:
            if (record := self._told()) is not None:
                tell_source(self, self._models, "recorded", "", record.step)
            return
        self._drawn = key
        millis, is_prefill = self._millis[: self._count], self._is_prefill[: self._count]
        first = timeline.first
        self._canvas.show_steps(self.theme, millis, is_prefill, selected, first.step if first else 0)
        self._legend.set_names(self._legend_names(draw.looking_share(millis, is_prefill)))
        self._tell()

    def _take_new(self) -> None:
        """Append what is new; only a history that was cut is read again."""
        records = self._models.timeline.records
        if self._count > len(records) or (self._count and records[self._count - 1] is not self._last):
            self._count = 0
        new = records[self._count :]
        if not new:
            return
        need = self._count + len(new)
        if need > len(self._millis):
            room = max(need, 2 * len(self._millis))
            self._millis = np.resize(self._millis, (room, 4))
            self._is_prefill = np.resize(self._is_prefill, room)
        self._millis[self._count : need], self._is_prefill[self._count : need] = draw.phase_table(new)
        self._count, self._last = need, records[-1]

    def _index_of(self, step: int) -> int | None:
        first = self._models.timeline.first
        record = self._models.timeline.record(step)
        if first is None or record is None:
            return None
        # steps are numbered without gaps; where they are not, count
        index = step - first.step
        records = self._models.timeline.records
        if 0 <= index < len(records) and records[index] is record:
            return index
        return next((i for i, other in enumerate(records) if other is record), None)

    def _legend_names(self, share: float | None) -> tuple[str, ...]:
        looking = f"looking {percent(share)}" if share is not None else "looking"
        return "forward", "prepare", "sample", looking

    def _told(self) -> StepRecord | None:
        """The record whose numbers are told."""
        records, index = self._models.timeline.records, self._pointed
        pointed = records[index] if index is not None and index < len(records) else None
        return pointed or self._models.timeline.at(self._models.selection.now.step)

    def _tell(self) -> None:
        """The pointed step in numbers, else the one that is selected or newest."""
        record = self._told()
        if record is None:
            return
        words = "step {0} · {1} · {2}"
        self._canvas.show_words(
            words.format(thousands(record.step), record.phase, milliseconds(record.timings.total_ms))
        )
        forward, prepare, sample, observe = (milliseconds(ms) for ms in draw.phase_row(record))
        self._canvas.setToolTip(
            f"step {thousands(record.step)}: forward {forward}, prepare {prepare}, sample {sample}, looking {observe}"
        )
        tell_source(self, self._models, "recorded", "", record.step)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._refresh()
