"""The base of panels that ask the engine for a measurement: the button, its progress, and why it is not possible."""

from __future__ import annotations

from typing import Any, ClassVar

from PySide6.QtCore import Signal

from app.kit.buttons import ProgressButton
from app.kit.labels import plain_tip
from app.kit.reader import SELECTION, STATUS, STEPS, State
from app.kit.view import View
from app.models import Models
from app.models.measurement import Measurement, Request
from engine.spec.cache import PRESETS, CacheSpec, preset_of
from engine.wire.commands import Cancel


class MeasuringView(View[State]):
    """A view of the measurement named in `measures`. The subclass says why nothing can be asked (`problem`) and shows
    the answer; this base follows the measurement.

    Signal: `applied(CacheSpec)` (make a mode that was tried the live one).
    """

    measures: ClassVar[str]
    follows = (SELECTION, STATUS, STEPS)

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.measurement: Measurement[Any] = getattr(models.measurements, self.measures)

    def follow(self, models: Models) -> None:
        self.measurement.changed.connect(self.refresh)
        super().follow(models)

    def problem(self) -> str:
        """Why nothing can be asked now; empty if it can."""
        raise NotImplementedError

    def measure(self) -> None:
        """Ask this panel's question. Does nothing in panels that ask by themselves."""

    @property
    def answer(self) -> Any:
        """The newest answer about the selected sequence, or None."""
        return self.measurement.answer_of(self._models.selection.now.seq_id)

    def invited(self, words: str) -> str:
        """The invitation to ask, preceded by the reason why an earlier answer is gone, if there was one."""
        if not self.measurement.is_out_of_date:
            return words
        return f"What was measured is out of date: the cache has changed since. {words}"

    def rebuilt_words(self, answer: Any) -> str:
        """A note if the answer was measured on rows recomputed from the tokens instead of those in the live cache."""
        return "On exact rows, rebuilt from the tokens." if answer is not None and answer.is_rebuilt else ""


class AskingView(MeasuringView[State]):
    """A measuring view with a button that asks, or stops a running measurement. The subclass sets `button_words` and
    `button_name`, places `button`, and returns the question from `request`."""

    button_words: ClassVar[str] = "Measure"
    button_name: ClassVar[str] = ""

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.button = AskButton(self.measurement, self.button_words)
        self.button.setAccessibleName(self.button_name or self.button_words)
        self.button.asked.connect(self.ask)
        self.button.stopped.connect(self._on_stopped)

    def request(self) -> Request | None:
        """The question to ask; None if it cannot be asked with the present settings."""
        raise NotImplementedError

    def ask(self) -> None:
        """Ask, if possible; a measurement that is running is not disturbed."""
        if self.measurement.is_waiting or self.problem():
            return
        request = self.request()
        if request is not None:
            self.wants.emit(request)

    def _on_stopped(self) -> None:
        self.wants.emit(Cancel())

    def measure(self) -> None:
        self.ask()

    def refresh(self) -> None:
        self.button.set_reason(self.problem())
        super().refresh()


class AskButton(ProgressButton):
    """Shows what it asks; while that is measured, its progress, and a click stops it."""

    asked = Signal()
    stopped = Signal()

    def __init__(self, measurement: Measurement[Any], words: str) -> None:
        super().__init__(words)
        self._measurement, self._words = measurement, words
        self.clicked.connect(self._on_clicked)
        measurement.changed.connect(self.refresh)

    def set_reason(self, reason: str) -> None:
        """Disable the button and say why in its tool tip; empty enables it."""
        self.setEnabled(not reason or self._measurement.is_waiting)
        self.setToolTip(plain_tip(reason))

    def refresh(self) -> None:
        found = self._measurement
        progress = f"Stop  {found.done}/{found.total}" if found.total else "Stop"
        self.show_progress(progress if found.is_waiting else self._words, found.share)

    def _on_clicked(self) -> None:
        if self._measurement.is_waiting:
            self.stopped.emit()
        else:
            self.asked.emit()


def mode_named(models: Models, name: str) -> CacheSpec:
    """The cache preset of that name; the mode in use keeps its present parameters."""
    status = models.status.now
    is_in_use = preset_of(status.cache).name == name and status.cache.codec.is_uniform
    return status.cache if is_in_use else PRESETS[name].spec


def why_nothing(models: Models, before: str, past: str, few: str) -> str:
    """Why nothing can be measured on the live rows: `before` the first step, `past` (with `{0}` for the step) while an
    earlier step is shown, `few` with a single token; empty if it can."""
    now, timeline = models.selection.now, models.timeline
    if timeline.latest is None:
        return before
    if now.step is not None:
        return past.format(now.step)
    return few if timeline.num_tokens(now.seq_id) < 2 else ""
