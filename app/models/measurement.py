"""Measurements that panels ask the engine for: per kind, the question, its progress and its answer."""

from __future__ import annotations

from enum import Enum
from typing import Any, Generic, TypeVar

from msgspec.structs import replace
from PySide6.QtCore import QObject, Signal

from engine.wire.events import Failed
from engine.wire.measurements import (
    Bench,
    Benched,
    CheckParity,
    DamageMap,
    MapDamage,
    Measured,
    MeasureRegret,
    ParityReport,
    Regret,
    Sweep,
    Swept,
    WhatIf,
    WhatIfAnswer,
)
from engine.wire.status import Work

Request = WhatIf | CheckParity | MapDamage | MeasureRegret | Sweep | Bench
A = TypeVar("A", bound=Measured)


class MeasurementState(Enum):
    """The state of a measurement. OUT_OF_DATE: the cache or the rows that were measured have changed since."""

    NOT_ASKED = "not asked"
    WAITING = "waiting"
    ANSWERED = "answered"
    REFUSED = "refused"
    OUT_OF_DATE = "out of date"


class Measurement(QObject, Generic[A]):
    """One kind of measurement. Only the controller writes it. Signal: `changed()`, anything of it.

    `question` is the newest question, `step` the newest step when it was asked. While waiting, `answers` are still
    those of the previous question. A sweep or bench has one answer per row.
    """

    changed = Signal()

    def __init__(self, command: type[Request]) -> None:
        super().__init__()
        self.command = command
        self.state = MeasurementState.NOT_ASKED
        self.question: Request | None = None
        self.step: int | None = None
        self.answers: tuple[A, ...] = ()
        self.refusal = ""

    # ---- what panels read ----------------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        return self.state is MeasurementState.WAITING

    @property
    def is_out_of_date(self) -> bool:
        return self.state is MeasurementState.OUT_OF_DATE

    def work(self, now: Work | None) -> Work | None:
        """What the engine does now, if that is this measurement, else None."""
        is_this = now is not None and self.question is not None and now.reply_to == self.question.id
        return now if is_this and self.is_waiting else None

    @property
    def answer(self) -> A | None:
        """The newest answer; None if there is none or the newest question was refused."""
        return self.answers[-1] if self.answers and self.state is not MeasurementState.REFUSED else None

    def answer_of(self, seq_id: int) -> A | None:
        """The newest answer if it is about this sequence, else None."""
        answer = self.answer
        return answer if answer is not None and getattr(answer.request, "seq_id", seq_id) == seq_id else None

    # ---- what the controller writes ------------------------------------------------------------------------------

    def ask(self, question: Request, step: int | None) -> None:
        """Note that a question was sent to the engine."""
        self.question, self.step = question, step
        self._enter(MeasurementState.WAITING)

    def take(self, answer: A) -> None:
        """Store an answer; nothing is stored where the rows have changed since the question."""
        if self.question is None:
            return
        if not isinstance(answer, Swept | Benched):
            self.answers = (answer,)
            self._enter(MeasurementState.ANSWERED)
            return
        answer = replace(answer, request=self.question)  # hundreds of rows then share one request object
        goes_on = isinstance(self.question, Sweep) and self.question.done
        is_first = not self.answers or (self.answers[-1].reply_to != answer.reply_to and not goes_on)
        self.answers = (answer,) if is_first else (*self.answers, answer)
        self._enter(MeasurementState.ANSWERED if answer.is_last else self.state)

    def refuse(self, failure: Failed) -> None:
        """Note that the newest question was refused, and why; without a reason, that it was cancelled."""
        if self.question is None:
            return
        self.refusal = failure.message
        unanswered = MeasurementState.ANSWERED if self.answers else MeasurementState.NOT_ASKED
        self._enter(MeasurementState.REFUSED if failure.message else unanswered)

    def outdate(self) -> None:
        """Drop the answers because the measured rows have changed: another cache mode or another live step."""
        self.answers, self.question, self.step = (), None, None
        self._enter(
            MeasurementState.NOT_ASKED if self.state is MeasurementState.NOT_ASKED else MeasurementState.OUT_OF_DATE
        )

    def forget(self) -> None:
        """Drop everything, as if nothing had been asked: another model was loaded."""
        self.answers, self.question, self.step = (), None, None
        self._enter(MeasurementState.NOT_ASKED)

    def _enter(self, state: MeasurementState) -> None:
        self.state = state
        if state is not MeasurementState.REFUSED:
            self.refusal = ""
        self.changed.emit()


class Measurements:
    """One measurement of each kind."""

    def __init__(self) -> None:
        self.what_if: Measurement[WhatIfAnswer] = Measurement(WhatIf)
        self.parity: Measurement[ParityReport] = Measurement(CheckParity)
        self.damage: Measurement[DamageMap] = Measurement(MapDamage)
        self.regret: Measurement[Regret] = Measurement(MeasureRegret)
        self.sweep: Measurement[Swept] = Measurement(Sweep)
        self.bench: Measurement[Benched] = Measurement(Bench)

    @property
    def all(self) -> tuple[Measurement[Any], ...]:
        return (*self.of_live_rows, self.sweep, self.bench)

    @property
    def of_live_rows(self) -> tuple[Measurement[Any], ...]:
        """The measurements of the live cache's rows; a sweep and a bench use caches of their own."""
        return self.what_if, self.parity, self.damage, self.regret
