"""Sends what panels ask the engine to measure, and hands answers and refusals to the measurement they belong to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from app.models import Models
from app.models.measurement import Answer, Measurement, Question
from engine.wire.commands import Command, MapDamage, MeasureRegret, WhatIf
from engine.wire.records import EngineStatus, Failed


class Measuring:
    """The one writer of `Models.measurements`. Every question has a stamp: an answer to an older one is shown by
    nobody."""

    def __init__(self, models: Models, post: Callable[[Command], None]) -> None:
        self._models = models
        self._measurements = models.measurements
        self._post = post
        self._last_stamp = 0
        self._by_command: dict[str, Measurement[Any]] = {m.command.__name__: m for m in self._measurements.all}
        models.status.changed.connect(self._on_status)

    def is_question(self, command: str) -> bool:
        """Whether a command of that name asks for a measurement."""
        return command in self._by_command

    def ask(self, question: Question) -> None:
        """Panels ask by themselves as well: what went wrong before is not taken back by that."""
        self._last_stamp += 1
        if isinstance(question, WhatIf | MapDamage | MeasureRegret):
            question = replace(question, rebuild=self._measurements.is_rebuilding)
        question = replace(question, stamp=self._last_stamp)
        latest = self._models.timeline.latest
        self._of(question).ask(question, latest.step if latest is not None else None)
        self._post(question)

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

    def take(self, answer: Answer) -> None:
        self._of(answer.request).take(answer)

    def refused(self, failure: Failed) -> None:
        """The panel that asked says so, and nobody else."""
        self._by_command[failure.what].refuse(failure)

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

    def _of(self, question: Question) -> Measurement[Any]:
        return self._by_command[type(question).__name__]

    def _on_status(self, _old: EngineStatus | None, status: EngineStatus) -> None:
        for each in self._by_command.values():
            each.follow(status.work)
