"""Measures the steps of a session and completes their records once the numbers have left the device."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from engine.cache.contract import Evicted
from engine.errors import InputError, first_line, is_of_device
from engine.history.history import History
from engine.look.candidates import Sample
from engine.look.evicted import EvictedInStep
from engine.look.ring import ObservationRing, PendingCopy
from engine.model.text import TokenTexts
from engine.session.captured import Captured
from engine.session.clock import StepClock
from engine.session.forward import Forward
from engine.session.observe import (
    ObservedStep,
    arrays_of,
    checksums_of,
    measure,
    measure_checksums,
    observation_of,
    packed_together,
    prefixed,
    with_observation,
)
from engine.spec.capture import CaptureLevel
from engine.wire.records import StepRecord

log = logging.getLogger(__name__)
EVICTED = "evicted"  # the name prefix of what was measured of evicted rows


@dataclass(eq=False)
class PendingMeasures:
    """What was measured of the sequences of one step and of the rows that it evicted; `sent` once it is being copied
    from the device."""

    parts: list[ObservedStep]
    choices: list[Sample | None]
    level: CaptureLevel
    evicted: EvictedInStep = field(default_factory=EvictedInStep)
    sent: PendingCopy | None = None


@dataclass(eq=False)
class OpenRecord:
    """The record of a finished step whose measurements have not arrived yet."""

    record: StepRecord
    measuring: PendingMeasures
    clock: StepClock


class Observer:
    """Measures what is `captured`; in a session that `is_scratch` only checksums. Completes records in the order of
    their steps: at once, or as many steps late as the ring allows."""

    def __init__(
        self, ring: ObservationRing, captured: Captured, history: History, text_of: TokenTexts, *, is_scratch: bool
    ) -> None:
        self.ring, self._captured = ring, captured
        self._history, self._text_of, self._is_scratch = history, text_of, is_scratch
        self._open: deque[OpenRecord] = deque()
        self._read_errors: list[InputError] = []

    def begin(self, forwards: Sequence[Forward], choices: list[Sample | None]) -> PendingMeasures:
        """Measure the forwards of a step, before its rows are quantised or evicted."""
        if self._is_scratch:
            return PendingMeasures([measure_checksums(forward) for forward in forwards], choices, "off")
        return PendingMeasures(measure(forwards, choices, self._captured), choices, self._captured.level)

    def send(self, measuring: PendingMeasures, evicted: Sequence[Evicted]) -> None:
        """Start the one copy that brings all measurements, and those of the `evicted` rows, to the host."""
        if self._is_scratch:
            return
        measuring.evicted = EvictedInStep(evicted)
        tensors = packed_together(measuring.parts) | prefixed(measuring.evicted.measure(), EVICTED)
        if tensors:
            measuring.sent = self.ring.send(tensors)

    def discard(self, measuring: PendingMeasures) -> None:
        """Discard the measurements of a step that failed."""
        if measuring.sent is not None:
            self.ring.undo_send(measuring.sent)

    def complete_at_once(self, record: StepRecord, measuring: PendingMeasures, clock: StepClock) -> StepRecord:
        """Wait for the measurements of a step and return its complete record; the step's time includes the wait."""
        return self._completed(OpenRecord(record, measuring, clock), ends=clock)

    def complete_later(self, record: StepRecord, measuring: PendingMeasures, clock: StepClock) -> None:
        """Queue the record of a finished step, to be completed when its measurements have arrived."""
        self._open.append(OpenRecord(record, measuring, clock))

    @property
    def num_open(self) -> int:
        """The number of finished steps whose records are not complete."""
        return len(self._open)

    def complete(self, num_late: int = 0) -> list[StepRecord]:
        """Complete and return the oldest records until `num_late` are left. Measurements that cannot be read are left
        out of a record, since its step is done; `take_read_errors` gives the reason. A device failure is raised, and
        the remaining records are discarded."""
        return [self._read(self._open.popleft()) for _ in range(len(self._open) - num_late)]

    def take_read_errors(self) -> list[InputError]:
        """Why measurements could not be read: one error for each such step since the last call."""
        found, self._read_errors = self._read_errors, []
        return found

    def _read(self, opened: OpenRecord) -> StepRecord:
        try:
            return self._completed(opened)
        except Exception as error:
            if is_of_device(error):
                self._open.clear()
                raise
            log.error("reading step %d failed", opened.record.step, exc_info=error)
            self._read_errors.append(read_error(opened.record.step, error))
            return opened.record

    def _completed(self, opened: OpenRecord, ends: StepClock | None = None) -> StepRecord:
        record, measuring = opened.record, opened.measuring
        arrays = self.ring.read(measuring.sent) if measuring.sent is not None else {}
        observations = [
            observation_of(part, arrays_of(arrays, str(n)), choice, self._text_of)
            for n, (part, choice) in enumerate(zip(measuring.parts, measuring.choices, strict=True))
        ]
        checksums = checksums_of([part.first_position for part in measuring.parts], observations)
        for part, seen in zip(record.sequences, observations, strict=True):
            self._history.log_rows(record.step, part.seq_id, seen.rows)
        self._history.set_checksums(record.step, checksums)
        if ends is not None:
            ends.end()
        timings = opened.clock.timings()
        if record.phase == "decode":
            self._captured.note_cost(measuring.level, timings.observe_ms)
        return replace(
            record,
            sequences=tuple(map(with_observation, record.sequences, observations)),
            non_finite=tuple(place for seen in observations for place in seen.non_finite),
            checksums=checksums,
            timings=timings,
            evictions=measuring.evicted.evictions(arrays_of(arrays, EVICTED)),
        )


def read_error(step: int, error: Exception) -> InputError:
    """The error that says that the measurements of a finished step could not be read."""
    return InputError(
        f"What was measured of step {step} could not be read ({type(error).__name__}: {first_line(error)}); the step "
        "is done, and its record lacks it: measure less of each step, or free memory."
    )
