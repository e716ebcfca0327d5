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
from engine.wire.commands import NextPhase
from engine.wire.message import Command
from engine.wire.phases import PhaseReached, Written

if TYPE_CHECKING:
    from engine.session.session import Session


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
        answer: Callable[[Command], None],
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
        refused; every other command cancels the step and is handled after it."""
        while True:
            command = self._inbox.take() or self._inbox.wait()
            if command is None:
                continue
            if isinstance(command, NextPhase):
                self._reporter.reply_to = command.id
                return
            match command.facts.effect:
                case "looks":
                    self._answer(command)
                case "steps":
                    self._answer(command)
                    if self._steps.count != 0:
                        return
                case "measures":
                    self._refuse(session, command)
                case "acts":
                    self._inbox.put_first(command)
                    raise Cancelled

    def _refuse(self, session: Session, command: Command) -> None:
        where = session.phases.suspended if session.phases is not None else None
        assert where is not None, "a step waits"
        words = f"{where.words[:1].upper()}{where.words[1:]}"
        why = f"{words}. Finish this step, or give it up, before anything is measured or written."
        self._reporter.reply_to = command.id
        self._reporter.fail(InputError(why), type(command).__name__)
