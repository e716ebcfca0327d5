"""Holds a step between its phases: which commands are answered meanwhile, and which ones continue or cancel the
step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.errors import Cancelled, InputError
from engine.loop.activity import Activity
from engine.loop.inbox import Inbox
from engine.loop.reporter import Reporter
from engine.loop.steps_to_do import StepsToDo
from engine.loop.watching import Watching
from engine.wire import commands, devices, exporting, measuring, stopping
from engine.wire.phases import PhaseReached, Written

if TYPE_CHECKING:
    from engine.session.session import Session

LOOKING = (
    commands.TakeSlice, commands.Watch, commands.Tokenize, commands.PreviewPrompt, commands.SetPace,
    commands.FindModels, commands.Pause, commands.EndDuel, stopping.SetStops, stopping.MeasureAttention,
    devices.FindDevices, devices.ForecastLoad,
)  # fmt: skip
MEASURING = (
    exporting.Export, exporting.EstimateExport, measuring.WhatIf, measuring.CheckParity, measuring.MapDamage,
    measuring.MeasureRegret, measuring.Sweep, measuring.Bench, commands.StartDuel,
)  # fmt: skip


class SuspendedSteps:
    """Makes a step wait at each of its phases until a command continues or cancels it. `answer` handles other commands
    as between two steps."""

    def __init__(
        self,
        reporter: Reporter,
        inbox: Inbox,
        activity: Activity,
        steps: StepsToDo,
        watching: Watching,
        answer: Callable[[commands.Command], None],
    ) -> None:
        self._reporter, self._inbox, self._activity = reporter, inbox, activity
        self._steps, self._watching, self._answer = steps, watching, answer

    def take(self, session: Session) -> Callable[[PhaseReached], None]:
        """The callback for a step that pauses: it reports each phase and waits for the next command; after a `Step` or
        `Run` it no longer waits. Raises `Cancelled` where the step is given up."""

        def reached(event: PhaseReached) -> None:
            self._reporter.reply(event)
            if not isinstance(event.phase, Written) and self._steps.count == 0:
                self._reporter.send_status()
                self._watching.at_phase(session)
                self._wait(session)
                self._activity.begin("a step in phases")

        return reached

    def _wait(self, session: Session) -> None:
        """Wait until a command continues the step. Commands that only look are answered meanwhile, measurements are
        refused; a Cancel, and every other command, cancels the step."""
        while True:
            command = self._inbox.take() or self._inbox.wait()
            match command:
                case None:
                    continue
                case commands.NextPhase():
                    self._reporter.reply_to = command.id
                    return
                case commands.Step() | commands.Run():
                    self._answer(command)
                    if self._steps.count != 0:
                        return
                case commands.Cancel():
                    raise Cancelled
                case _ if isinstance(command, LOOKING):
                    self._answer(command)
                case _ if isinstance(command, MEASURING):
                    self._refuse(session, command)
                case _:
                    self._inbox.put_first(command)
                    raise Cancelled

    def _refuse(self, session: Session, command: commands.Command) -> None:
        where = session.phases.suspended if session.phases is not None else None
        assert where is not None, "a step waits"
        words = f"{where.words[:1].upper()}{where.words[1:]}"
        why = f"{words}. Finish this step, or give it up, before anything is measured or written."
        self._reporter.reply_to = command.id
        self._reporter.fail(InputError(why), type(command).__name__)
