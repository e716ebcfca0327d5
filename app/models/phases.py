"""The step that is taken in phases: what each of them told, and at which it waits."""

from __future__ import annotations

from msgspec import Struct
from PySide6.QtCore import QObject, Signal

from engine.wire.phases import Chosen, LayerDone, PhaseReached, Scheduled, SuspendedStep, Written


class PhaseProgress(Struct, frozen=True, eq=False):
    """A step of `num_layers` layers and the phases that it has passed, oldest first; the last is where it stands."""

    step: int
    num_layers: int
    passed: tuple[PhaseReached, ...]

    @property
    def latest(self) -> PhaseReached:
        return self.passed[-1]

    @property
    def is_written(self) -> bool:
        """Whether it is done, and waits no more."""
        return isinstance(self.latest.phase, Written)

    @property
    def place(self) -> int:
        """Where it stands; see `place_of`."""
        return place_of(self.latest)

    def at(self, place: int) -> PhaseReached | None:
        """What the phase at a place told last; None where it was not passed."""
        return next((event for event in reversed(self.passed) if place_of(event) == place), None)


def place_of(event: PhaseReached) -> int:
    """Where a phase stands among scheduled (0), the layers, chosen and written."""
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
    """Only the controller writes; `changed`: a phase was reached, or there is nothing to show any more."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._now: PhaseProgress | None = None

    @property
    def now(self) -> PhaseProgress | None:
        return self._now

    def text_at(self, seq_id: int, position: int) -> str | None:
        """A token that the step in hand feeds, which is in no record yet; None where it feeds none there."""
        first = self._now.passed[0].phase if self._now is not None else None
        for part in first.sequences if isinstance(first, Scheduled) else ():
            if part.seq_id == seq_id and 0 <= position - part.first_position < len(part.texts):
                return part.texts[position - part.first_position]
        return None

    def take(self, event: PhaseReached) -> None:
        """A phase was reached; one that is scheduled begins another step."""
        known = self._now
        goes_on = known is not None and known.step == event.step and not isinstance(event.phase, Scheduled)
        passed = known.passed if goes_on and known is not None else ()
        self._now = PhaseProgress(event.step, event.num_layers, (*passed, event))
        self.changed.emit()

    def follow(self, suspended: SuspendedStep | None, step: int | None) -> bool:
        """The engine stands at `step` and holds this one up, or none. Whether a step was given up."""
        known = self._now
        if known is None or suspended is not None or (known.is_written and step == known.step):
            return False
        self._now = None
        self.changed.emit()
        return not known.is_written
