"""The base of panels that follow the models: they read one frozen state, or a reason why there is none, and show it."""

from __future__ import annotations

from typing import ClassVar

from PySide6.QtGui import QResizeEvent

from app.kit.chart.plot import Plot
from app.kit.panel import Panel
from app.kit.provenance import Provenance
from app.kit.reader import Reader, State
from app.models import Models
from engine.spec.capture import CaptureLevel, captures

# Names of the buttons that the window can give to a panel for when it has nothing to show.
GO_THERE, LOAD, MEASURE, PAGED, COMPARE, ATTACH = "go there", "load", "measure", "paged", "compare", "attach"


class View(Reader[State], Panel):
    """A subclass sets its `title` and what it `follows`, builds its body in the constructor, which ends with
    `self.follow(models)`, and implements `read`, `show_state` and `provenance`.

    This base does the rest. While the panel is hidden, nothing is read. `show_state` is called only when the state or
    the theme has changed. `provenance` is asked for at every reading, because unchanged numbers may by now be of an
    earlier step. Without a state, the strip is empty and the body is replaced by the reason. With `choices` (id, text,
    tool tip) the strip has segments, and `choice` is the chosen one.
    """

    title: ClassVar[str]
    choices: ClassVar[tuple[tuple[str, str, str], ...]] = ()
    choices_when_empty: ClassVar[bool] = True  # whether the segments are visible without a state
    reads_size: ClassVar[bool] = False  # whether the state depends on the panel's size
    needs: ClassVar[CaptureLevel | None] = None  # the capture level of a step that this panel requires

    def __init__(
        self,
        models: Models,
        *,
        can_pin: bool = False,
        can_copy: bool = True,
    ) -> None:
        super().__init__(self.title, can_pin=can_pin, can_copy=can_copy)
        self._models = models
        if type(self).provenance is not View.provenance:  # reserve its width, so that its first text widens no column
            policy = self.provenance_label.sizePolicy()
            policy.setRetainSizeWhenHidden(True)
            self.provenance_label.setSizePolicy(policy)
        self.choice = self.choices[0][0] if self.choices else ""
        if self.choices:
            self.set_choices(self.choices)
            self.set_choice(self.choice)
            self.segments.chosen.connect(self.choose)

    def provenance(self, state: State) -> Provenance | None:
        """Where the numbers of a state come from, and whether they are of the newest step; None shows nothing."""
        return None

    def choose(self, choice: str) -> None:
        """Select a segment of the strip, as a click on it does."""
        self.choice = choice
        self.set_choice(choice)
        self.refresh()

    def refresh(self) -> None:
        super().refresh()
        if isinstance(self._state, str):
            self.set_empty(self._state, self._remedy())  # with the same reason another remedy may be possible by now

    def show_nothing(self, why: str) -> None:
        self.set_detail("")
        self.set_provenance("")
        if not self.choices_when_empty:
            self.set_choices(())

    def show_choices(self, is_any: bool) -> None:
        """Show or hide the segments: where there is room for all that they choose between, they are not needed."""
        self.set_choices(self.choices if is_any else ())
        self.set_choice(self.choice)

    def _remedy(self) -> str:
        """The name of the button that would help when there is nothing to show; empty if none does."""
        if self._models.timeline.is_elsewhere:
            return GO_THERE
        if self._models.status.is_unloaded:
            return LOAD
        return "" if self.is_measured else MEASURE

    @property
    def is_measured(self) -> bool:
        """Whether the present capture level includes what this panel shows."""
        status = self._models.status.now
        return status is None or self.needs is None or captures(status.capture.level, self.needs)

    def _take(self, state: State) -> None:
        self.set_empty(None)
        super()._take(state)
        source = self.provenance(state)
        if source is None:
            self.set_provenance("")
        else:
            self.set_provenance(source.words, source.kind, source.sentence, source.brief)

    def reset_view(self) -> None:
        """Show everything again, in every plot of the panel."""
        for plot in self.findChildren(Plot):
            plot.reset_view()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if self.reads_size:
            self.refresh()

    def take_theme(self) -> None:
        super().take_theme()
        self.show_again()
