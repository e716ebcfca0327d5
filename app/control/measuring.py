"""Sends the measurements that panels ask for, and gives each answer or refusal to the measurement it belongs to."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from app.control.sender import Sender
from app.models import Models
from app.models.measurement import Measurement, Request
from engine.wire.events import Failed
from engine.wire.measurements import Measured
from engine.wire.measuring import MapDamage, MeasureRegret, WhatIf
from engine.wire.status import EngineStatus


class MeasurementControl:
    """The only writer of `Models.measurements`. An answer to an older question is dropped."""

    def __init__(self, models: Models, sender: Sender) -> None:
        self._models = models
        self._measurements = models.measurements
        self._sender = sender
        self._asked: dict[int, Measurement[Any]] = {}  # by the id of the command
        self._by_command: dict[type[Request], Measurement[Any]] = {m.command: m for m in self._measurements.all}
        models.status.changed.connect(self._on_status)

    def ask(self, question: Request) -> None:
        """Send a measurement. Panels do so on their own too, so an earlier failure stays in the status line."""
        if isinstance(question, WhatIf | MapDamage | MeasureRegret):
            question = replace(question, rebuild=self._measurements.is_rebuilding)
        latest, measurement = self._models.timeline.live_path.latest, self._of(question)
        question = replace(question, id=self._sender.post(question))
        self._asked[question.id] = measurement
        measurement.ask(question, latest.step if latest is not None else None)

    def cancel(self) -> None:
        """Mark all measurements as cancelled: the engine was told to stop."""
        for each in self._by_command.values():
            each.cancel()

    def rebuild(self) -> None:
        """From now on, let questions that need rows the cache has dropped be answered with exact rows recomputed from
        the tokens."""
        self._measurements.is_rebuilding = True
        for each in self._by_command.values():
            if each.can_rebuild:
                each.forget()

    def take(self, answer: Measured) -> None:
        self._of(answer.request).take(answer)

    def refuse(self, failure: Failed) -> bool:
        """Whether the failure concerns a measurement. The panel that asked then shows it, unless it has asked something
        newer since."""
        if failure.reply_to is None or (measurement := self._asked.get(failure.reply_to)) is None:
            return False
        if measurement.question is not None and measurement.question.id == failure.reply_to:
            measurement.refuse(failure)
        older = [number for number, each in self._asked.items() if each is measurement and number < failure.reply_to]
        for number in older:  # answers come in order
            del self._asked[number]
        return True

    def outdate(self) -> None:
        """Mark what was measured on the live rows as outdated: these rows have changed."""
        for each in self._measurements.of_live_rows:
            each.outdate()

    def change_cache(self) -> None:
        """The cache mode has changed: outdate the measurements, and recompute dropped rows only when asked again."""
        self._measurements.is_rebuilding = False
        self.outdate()

    def forget(self) -> None:
        """Another model was loaded: drop all results."""
        for each in self._by_command.values():
            each.forget()

    def _of(self, question: Request) -> Measurement[Any]:
        return self._by_command[type(question)]

    def _on_status(self, _old: EngineStatus | None, status: EngineStatus) -> None:
        for each in self._by_command.values():
            each.follow(status.work)
