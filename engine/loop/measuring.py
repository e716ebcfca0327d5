"""Runs measurements on request (what-if, parity, damage, regret, sweep, benchmark); none changes the live session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from engine.errors import Cancelled, InputError, Progress
from engine.loop.inbox import Inbox
from engine.loop.reporter import Reporter
from engine.spec.cache import cache_label
from engine.wire import events
from engine.wire.measurements import (
    Bench,
    Benched,
    CheckParity,
    DamageMap,
    MapDamage,
    MeasureRegret,
    ParityReport,
    Regret,
    Sweep,
    Swept,
    WhatIf,
    WhatIfAnswer,
)

if TYPE_CHECKING:
    from engine.session.session import Session

Answer = TypeVar("Answer", ParityReport, DamageMap, Regret)

GIVEN_UP = "The trial was given up: choose something, and it is asked again."


class MeasurementRunner:
    """Answers measurement commands; a cancelled one is not answered. A what-if is answered with an estimate at once,
    and its trial then runs piece by piece while the loop is idle."""

    def __init__(self, reporter: Reporter, inbox: Inbox) -> None:
        self._reporter, self._inbox = reporter, inbox
        self._trial: tuple[WhatIf, Iterator[Progress | WhatIfAnswer]] | None = None

    @property
    def is_trying(self) -> bool:
        """Whether a what-if trial is running."""
        return self._trial is not None

    @property
    def asked_by(self) -> int | None:
        """The id of the command whose trial is running; None where none is."""
        return None if self._trial is None else self._trial[0].id

    def drop_trial(self) -> None:
        """Drop the trial, because its question is out of date."""
        if self._trial is not None:
            self._reporter.end(self._trial[0].id, events.Cancelled())
            self._trial = None

    def check_parity(self, session: Session, command: CheckParity) -> None:
        from engine.analysis.parity import live_parity

        other = "the model without a cache" if command.against is None else cache_label(command.against)
        self._answer(f"Comparing with {other}", live_parity(session, command))

    def map_damage(self, session: Session, command: MapDamage) -> None:
        from engine.analysis.what_if import measured_damage

        self._answer("Measuring what the codec does", measured_damage(session, command))

    def measure_regret(self, session: Session, command: MeasureRegret) -> None:
        from engine.analysis.what_if import regret

        self._answer("Removing rows, one after the other", regret(session, command))

    def _answer(self, label: str, pieces: Iterator[Progress | Answer]) -> None:
        """Run a measurement and answer it; raises `Cancelled` if it is cancelled."""
        if (answer := self._reporter.follow(label, pieces)) is not None:
            self._reporter.reply(answer)

    def what_if(self, session: Session, command: WhatIf) -> None:
        """Answer a what-if with its estimate, and keep the trial to be continued. For a dragged slider the estimate
        mostly comes before any progress would be reported."""
        from engine.analysis.what_if import what_if

        pieces = what_if(session, command)
        self._trial = command, pieces
        try:
            estimate = self._reporter.follow("Trying another cache", pieces, is_mostly_short=True)
        except Cancelled:  # an answer is needed: the panel asks one question at a time and waits for it
            self._trial = None
            raise InputError(GIVEN_UP) from None
        if estimate is not None:
            self._reporter.reply(estimate)

    def advance_trial(self) -> None:
        """Run one more piece of the trial, and answer with its result when it is done."""
        assert self._trial is not None
        command, pieces = self._trial
        self._reporter.reply_to = command.id
        try:
            piece = next(pieces, None)
        except Exception as error:
            self._trial = None
            is_cancelled = isinstance(error, Cancelled)  # cancelled during a compilation
            self._reporter.fail(InputError(GIVEN_UP) if is_cancelled else error, "a trial")
            return
        if piece is None:
            self._trial = None
        elif not isinstance(piece, tuple):
            self._reporter.reply(piece)

    def sweep(self, session: Session, command: Sweep) -> None:
        """Run other cache modes on the same model, one after the other, and answer row by row; a cancel ends it before
        the next step."""
        from engine.analysis.sweep import sweep

        reporter, pairs = self._reporter, ((m, t.name) for t in command.texts for m in command.modes)
        missing = [(mode.label, text) for mode, text in pairs if (mode.name, text) not in command.done]
        num_rows = command.num_rows - len(missing)
        reporter.begin("Sweeping: the exact model first", num_rows, command.num_rows)
        check = self._inbox.check_uncancelled
        for row in sweep(session.model, command.texts, command.modes, command.num_steps, command.done, check):
            num_rows += 1
            reporter.reply(Swept(command, row, num_rows == command.num_rows))
            if num_rows < command.num_rows:
                mode, text = missing[num_rows - command.num_rows]
                reporter.begin(f"Sweeping: {mode} on {text}", num_rows, command.num_rows)

    def bench(self, session: Session, command: Bench) -> None:
        """Time cache modes of the same model against each other, and answer row by row; a cancel ends it before the
        next step."""
        from engine.analysis.bench import bench

        specs, num_rows, label = dict(command.caches), 0, "Benchmarking"
        total = len(specs) * len(command.contexts) * len(command.batches)
        reporter, check = self._reporter, self._inbox.check_uncancelled
        reporter.begin(label)
        for piece in bench(session.model, specs, command.contexts, command.num_steps, command.batches, check=check):
            if isinstance(piece, tuple):
                reporter.progress(label, *piece)
            else:
                num_rows += 1
                reporter.reply(Benched(command, piece, num_rows == total))
