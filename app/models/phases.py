"""The step that is taken in phases: which phases it has passed, and what each reported."""

from __future__ import annotations

from msgspec import Struct
from PySide6.QtCore import QObject, Signal

from engine.wire.status import Chosen, LayerDone, PhaseReached, Scheduled, SuspendedStep, Written


class PhaseProgress(Struct, frozen=True, eq=False):
    """The phases that a step of `num_layers` layers has passed, oldest first; it is suspended after the last of
    them."""

    step: int
    num_layers: int
    passed: tuple[PhaseReached, ...]

    @property
    def latest(self) -> PhaseReached:
        return self.passed[-1]

    @property
    def is_written(self) -> bool:
        """Whether the step is finished."""
        return isinstance(self.latest.phase, Written)

    @property
    def place(self) -> int:
        """The index of the latest phase; see `place_of`."""
        return place_of(self.latest)

    def at(self, place: int) -> PhaseReached | None:
        """The last report of the phase at an index; None if it was not reached."""
        return next((event for event in reversed(self.passed) if place_of(event) == place), None)


def place_of(event: PhaseReached) -> int:
    """A phase's index: 0 scheduled, then one per layer, then token chosen, then rows written."""
    match event.phase:
        case Scheduled():
            return 0
        case LayerDone(layer=layer):
            return 1 + layer
        case Chosen():
            return 1 + event.num_layers
        case _:
            return 2 + event.num_layers


class Phases(QObject):
    """Only the controller writes it. Signal: `changed()`, a phase was reached, or there is none to show any more."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.now: PhaseProgress | None = None

    def text_at(self, seq_id: int, position: int) -> str | None:
        """The text of a token that the suspended step computes, which is in no record yet; None if it computes none
        there."""
        first = self.now.passed[0].phase if self.now is not None else None
        for part in first.sequences if isinstance(first, Scheduled) else ():
            if part.seq_id == seq_id and 0 <= position - part.first_position < len(part.texts):
                return part.texts[position - part.first_position]
        return None

    def take(self, event: PhaseReached) -> None:
        """Add a phase that was reached; the phase `Scheduled` begins a new step."""
        known = self.now
        goes_on = known is not None and known.step == event.step and not isinstance(event.phase, Scheduled)
        passed = known.passed if goes_on and known is not None else ()
        self.now = PhaseProgress(event.step, event.num_layers, (*passed, event))
        self.changed.emit()

    def follow(self, suspended: SuspendedStep | None, step: int | None) -> bool:
        """Update from the engine's status: its step, and the step it has suspended. Returns whether a step was given
        up."""
        known = self.now
        if known is None or suspended is not None or (known.is_written and step == known.step):
            return False
        self.now = None
        self.changed.emit()
        return not known.is_written
