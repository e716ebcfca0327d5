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
from engine.look.ring import ObservationRing, Sent
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
    named,
    packed_together,
    told,
    with_observation,
)
from engine.spec.capture import CaptureLevel
from engine.wire.records import StepRecord

log = logging.getLogger(__name__)
EVICTED = "evicted"  # stands before the names of what was measured of rows that went


@dataclass(eq=False)
class PendingMeasures:
    """What was measured of the sequences of one step, and what it dropped; `sent`: on its way from the device."""

    parts: list[ObservedStep]
    choices: list[Sample | None]
    level: CaptureLevel
    evicted: EvictedInStep = field(default_factory=EvictedInStep)
    sent: Sent | None = None


@dataclass(eq=False)
class OpenRecord:
    """A record without what was measured of its step, which is on its way."""

    record: StepRecord
    measuring: PendingMeasures
    clock: StepClock


class Observer:
    """Measures what is `captured`; checksums alone where a step `is_aside`. Records are completed in the order of their
    steps: at once, or as many steps late as the ring allows."""

    def __init__(
        self, ring: ObservationRing, captured: Captured, history: History, text_of: TokenTexts, *, is_aside: bool
    ) -> None:
        self.ring, self._captured = ring, captured
        self._history, self._text_of, self._is_aside = history, text_of, is_aside
        self._open: deque[OpenRecord] = deque()
        self._unread: list[InputError] = []

    def begin(self, forwards: Sequence[Forward], choices: list[Sample | None]) -> PendingMeasures:
        """Measure the forwards of a step, before its rows are coded or dropped."""
        if self._is_aside:
            return PendingMeasures([measure_checksums(forward) for forward in forwards], choices, "off")
        return PendingMeasures(measure(forwards, choices, self._captured), choices, self._captured.level)

    def send(self, measuring: PendingMeasures, evicted: Sequence[Evicted]) -> None:
        """All that was measured, and what the step has `evicted` since, leaves the device in one copy."""
        if self._is_aside:
            return
        measuring.evicted = EvictedInStep(evicted)
        tensors = packed_together(measuring.parts) | named(measuring.evicted.measure(), EVICTED)
        if tensors:
            measuring.sent = self.ring.send(tensors)

    def take_back(self, measuring: PendingMeasures) -> None:
        """The step failed: nobody reads what it measured."""
        if measuring.sent is not None:
            self.ring.take_back(measuring.sent)

    def complete_at_once(self, record: StepRecord, measuring: PendingMeasures, clock: StepClock) -> StepRecord:
        """The record of a step with what was measured, which is waited for; so long the step lasts."""
        return self._completed(OpenRecord(record, measuring, clock), ends=clock)

    def complete_later(self, record: StepRecord, measuring: PendingMeasures, clock: StepClock) -> None:
        """A step is done: its record lacks what was measured."""
        self._open.append(OpenRecord(record, measuring, clock))

    @property
    def num_open(self) -> int:
        """How many steps are done whose records are not complete."""
        return len(self._open)

    def complete(self, num_late: int = 0) -> list[StepRecord]:
        """The records of the oldest steps, complete, until so many are left on their way. The step of a record is done:
        what cannot be read is left out of it, and `take_unread` says so. Raises what a failed device raises, of which
        nothing more is read."""
        return [self._read(self._open.popleft()) for _ in range(len(self._open) - num_late)]

    def take_unread(self) -> list[InputError]:
        """Of each step since this was asked that could not be read why."""
        found, self._unread = self._unread, []
        return found

    def _read(self, opened: OpenRecord) -> StepRecord:
        try:
            return self._completed(opened)
        except Exception as error:
            if is_of_device(error):
                self._open.clear()
                raise
            log.error("reading step %d failed", opened.record.step, exc_info=error)
            self._unread.append(not_read(opened.record.step, error))
            return opened.record

    def _completed(self, opened: OpenRecord, ends: StepClock | None = None) -> StepRecord:
        record, measuring = opened.record, opened.measuring
        arrays = self.ring.read(measuring.sent) if measuring.sent is not None else {}
        observations = [
            told(part, arrays_of(arrays, str(n)), choice, self._text_of)
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
            evictions=measuring.evicted.told(arrays_of(arrays, EVICTED)),
        )


def not_read(step: int, error: Exception) -> InputError:
    """The failure of one who looks at a step, which is done."""
    return InputError(
        f"What was measured of step {step} could not be read ({type(error).__name__}: {first_line(error)}); the step "
        "is done, and its record lacks it: measure less of each step, or free memory."
    )
