"""Sends what panels ask the engine to measure, and hands answers and refusals to the measurement they belong to."""

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
    """The one writer of `Models.measurements`. An answer to an older question is shown by nobody."""

    def __init__(self, models: Models, sender: Sender) -> None:
        self._models = models
        self._measurements = models.measurements
        self._sender = sender
        self._asked: dict[int, Measurement[Any]] = {}  # by the id of the question
        self._by_command: dict[type[Request], Measurement[Any]] = {m.command: m for m in self._measurements.all}
        models.status.changed.connect(self._on_status)

    def ask(self, question: Request) -> None:
        """Panels ask by themselves as well: what went wrong before is not taken back by that."""
        if isinstance(question, WhatIf | MapDamage | MeasureRegret):
            question = replace(question, rebuild=self._measurements.is_rebuilding)
        latest, measurement = self._models.timeline.live_path.latest, self._of(question)
        question = replace(question, id=self._sender.post(question))
        self._asked[question.id] = measurement
        measurement.ask(question, latest.step if latest is not None else None)

    def cancel(self) -> None:
        """The engine was told to stop what it measures."""
        for each in self._by_command.values():
            each.cancel()

    def rebuild(self) -> None:
        """From now on ask exact rows, rebuilt from the tokens, what the rows held cannot answer."""
        self._measurements.is_rebuilding = True
        for each in self._by_command.values():
            if each.can_rebuild:
                each.forget()

    def take(self, answer: Measured) -> None:
        self._of(answer.request).take(answer)

    def refuse(self, failure: Failed) -> bool:
        """Whether it refuses a measurement: then the panel that asked says so, and nobody else; nobody at all where it
        has asked something newer since."""
        if failure.reply_to is None or (measurement := self._asked.get(failure.reply_to)) is None:
            return False
        if measurement.question is not None and measurement.question.id == failure.reply_to:
            measurement.refuse(failure)
        older = [number for number, each in self._asked.items() if each is measurement and number < failure.reply_to]
        for number in older:  # answers come in order
            del self._asked[number]
        return True

    def outdate(self) -> None:
        """What was measured on the rows held is about rows that are gone."""
        for each in self._measurements.of_live_rows:
            each.outdate()

    def change_cache(self) -> None:
        """Another cache: nobody has asked yet to rebuild the rows that it drops."""
        self._measurements.is_rebuilding = False
        self.outdate()

    def forget(self) -> None:
        """Another model: nothing of what was measured holds for it."""
        for each in self._by_command.values():
            each.forget()

    def _of(self, question: Request) -> Measurement[Any]:
        return self._by_command[type(question)]

    def _on_status(self, _old: EngineStatus | None, status: EngineStatus) -> None:
        for each in self._by_command.values():
            each.follow(status.work)
