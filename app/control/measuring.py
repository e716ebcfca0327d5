"""Sends the measurements that panels ask for, and ends or outdates them when what they measured is another."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from app.control.sender import Sender
from app.kit.question import Question
from app.models import Models
from app.models.measurement import Measurement, Request
from engine.wire.measuring import MapDamage, MeasureRegret, WhatIf
from engine.wire.status import EngineStatus


class MeasurementControl:
    """The only writer of `Models.measurements`. An answer to an older question is dropped."""

    def __init__(self, models: Models, sender: Sender) -> None:
        self._models = models
        self._measurements = models.measurements
        self._sender = sender
        self._by_command: dict[type[Request], Measurement[Any]] = {m.command: m for m in self._measurements.all}
        models.status.changed.connect(self._on_status)

    def ask(self, question: Request) -> None:
        """Send a measurement. Panels do so on their own too, so an earlier failure stays in the status line."""
        if isinstance(question, WhatIf | MapDamage | MeasureRegret):
            question = replace(question, rebuild=self._measurements.is_rebuilding)
        latest, measurement = self._models.timeline.live_path.latest, self._by_command[type(question)]
        question = replace(question, id=self._sender.next_id())
        measurement.ask(question, latest.step if latest is not None else None)
        self._sender.ask(Question(question, measurement.take, measurement.refuse, slot=type(question)))

    def rebuild(self) -> None:
        """From now on, let questions that need rows the cache has dropped be answered with exact rows recomputed from
        the tokens."""
        self._measurements.is_rebuilding = True
        for each in self._by_command.values():
            if each.can_rebuild:
                each.forget()

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

    def _on_status(self, _old: EngineStatus | None, status: EngineStatus) -> None:
        for each in self._by_command.values():
            each.follow(status.work)
