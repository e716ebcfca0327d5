"""The engine loop: handles commands one by one, runs the steps of the session between them, and emits events."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from engine.errors import Cancelled, DeviceLost, InputError, first_line
from engine.look.finer import Finer
from engine.loop.breakpoints import Breakpoints
from engine.loop.comparing import Comparing
from engine.loop.handlers import HANDLERS
from engine.loop.inbox import Activity, Inbox, StepsToDo
from engine.loop.measuring import MeasurementRunner
from engine.loop.reporter import Reporter
from engine.loop.watching import Watching, has_time_for_surprisal, report_surprisal, with_surprisal
from engine.loop.workspace import Workspace
from engine.wire.commands import NextPhase, Shutdown
from engine.wire.events import EngineLost, Failed, Stopped, word_of_cancelled
from engine.wire.message import Command, Event
from engine.wire.status import EngineStatus, PhaseReached, Written

if TYPE_CHECKING:
    from engine.opened.file import OpenedSnapshot
    from engine.session.session import Session
    from engine.wire.records import StepRecord


LONG_WAIT_S = 0.25  # a paced run that waits longer for its next step has its pictures completed meanwhile


class EngineLoop:
    """Handles commands one by one and steps the session between them. `send` may be called from any thread. `emit` is
    called with every event, on the thread of `run`. While `is_behind` says that the receiver is slow, pictures are held
    back; with a `finer`, large ones are coarser and follow whole. `activity` says what the loop is doing.

    An inline loop (`is_inline`) works on the thread of its caller, turn by turn: what fails is raised there, and no
    other thread helps. With `has_whole_records` no record leaves surprisals open, to follow later."""

    def __init__(
        self,
        emit: Callable[[Event], None],
        is_behind: Callable[[], bool] = lambda: False,
        finer: Finer | None = None,
        *,
        is_inline: bool = False,
        has_whole_records: bool = False,
    ) -> None:
        # types are named for the type checker, which reads the handlers before them
        self._is_behind, self._has_whole_records = is_behind, has_whole_records
        self.activity = Activity()
        self.inbox: Inbox = Inbox(self.activity, emit)
        self.reporter: Reporter = Reporter(emit, self._status, self.activity, self.inbox, finer, is_inline)
        self.measuring: MeasurementRunner = MeasurementRunner(self.reporter, self.inbox)
        self.comparing: Comparing = Comparing(self.reporter, self.inbox)
        self.steps: StepsToDo = StepsToDo()
        self.breakpoints: Breakpoints = Breakpoints(self.reporter, self.steps, self.comparing)
        self.watching: Watching = Watching(self.reporter)
        parts = self.steps, self.breakpoints, self.watching, self.comparing
        self.workspace: Workspace = Workspace(self.reporter, self.inbox, self.activity, *parts)
        self.reporter.memory = self.workspace.memory

    def send(self, command: Command) -> None:
        self.inbox.put(command)

    def run(self) -> None:
        """Work until a `Shutdown` comes. After a device has failed, every command is refused, and the client has to
        restart the engine."""
        try:
            shutdown = self._work()
        except DeviceLost as lost:
            shutdown = self._refuse_all(f"{self.workspace.device} does not work any more ({lost})")
        self.reporter.answer(shutdown.id, Stopped())

    def _refuse_all(self, cause: str) -> Shutdown:
        """Report the engine as lost and refuse every command until a `Shutdown`."""
        self.reporter.emit(EngineLost(cause))
        while not isinstance(command := self.inbox.take() or self.inbox.wait(), Shutdown):
            if command is not None:
                self.reporter.answer(command.id, Failed(f"{cause}: restart the engine."))
        return command

    def _work(self) -> Shutdown:
        """Handle commands as they come, and work between them; wait where there is nothing to do, or the pace of a run
        delays its next step."""
        command = self.inbox.take()
        while not isinstance(command, Shutdown):
            has_worked = self._turn(command)
            command = self.inbox.take()
            if not has_worked and command is None:
                self._rest()
                command = self.inbox.wait(self._wait_s if self._has_work else None)
        self.reporter.end_all_but()
        return command

    def turn(self) -> None:
        """Handle the next command, or else do a piece of work; does not wait for one. For an inline loop, in place of
        `run`."""
        self._turn(self.inbox.take())

    def _turn(self, command: Command | None) -> bool:
        """Handle a command; without one do the most urgent piece of work. False where there is nothing to do."""
        if command is not None:
            self._handle_and_report(command)
        elif not self._do_piece():
            return False
        self.reporter.end_all_but(self.steps.asked_by if self._has_work else None, self.measuring.asked_by)
        return True

    def _do_piece(self) -> bool:
        """Do a piece of work: surprisals if there is time, a step, then a picture that is owed, the other run of a
        comparison, an opened file, a what-if trial. False where there is none, or a step is not due yet."""
        session, wait_s = self.workspace.session, self._wait_s if self._has_work else None
        if session is not None and has_time_for_surprisal(session, wait_s):
            self.activity.begin("the surprisal of a prompt")
            report_surprisal(session, self.reporter)
        elif session is not None and wait_s is not None:
            if wait_s > 0:
                return False
            self._advance(session)
        elif self.reporter.owes:
            self._begin_other("drawing")
            self.reporter.pay()
        elif self.comparing.has_more:
            self._begin_other("the other run of a comparison")
            self.comparing.advance(session)
        elif self.workspace.opened.has_more:
            self._begin_other("reading an opened file")
            self.workspace.opened.report_more()
        elif self.measuring.is_trying:
            self._begin_other("trying another cache")
            self.measuring.advance_trial()
        else:
            return False
        return True

    @property
    def session(self) -> Session:
        """The live session, for commands that need one."""
        assert self.workspace.session is not None, "`handle` has checked it"
        return self.workspace.session

    @property
    def source(self) -> Session | OpenedSnapshot:
        """What has the rows, for commands that need some: the opened snapshot, else the live session."""
        return self.workspace.opened.snapshot or self.session

    @property
    def _has_work(self) -> bool:
        session = self.workspace.session
        return self.steps.count != 0 and session is not None and session.has_work

    @property
    def _wait_s(self) -> float:
        """Seconds until the pace of the run allows the next step; prefill chunks are not paced, nor is an inline
        loop."""
        wait_s = 0.0 if self.reporter.is_inline else self.steps.wait_s
        return 0.0 if wait_s and self.session.is_prefilling else wait_s

    @property
    def _pauses_now(self) -> bool:
        """Whether no step follows, or only after so long a wait that the pictures have to be complete meanwhile."""
        return not self._has_work or self._wait_s > LONG_WAIT_S

    def _status(self) -> EngineStatus:
        current = self.workspace.current
        if current is None:
            cache, sampling = self.workspace.cache, self.workspace.sampling
            status = EngineStatus(None, cache, sampling, (), None, running=False, work=self.reporter.work)
        else:
            status = current.status(self.workspace.sampling, self.reporter.work, running=self._has_work)
        return self.breakpoints.added_to(status, self.workspace.session)

    def _begin_other(self, what: str) -> None:
        """Begin with other work than a step."""
        self._rest()
        self.activity.begin(what)

    def _rest(self) -> None:
        """Tell the session that a pause comes before its next step."""
        if self.workspace.session is not None:
            self.workspace.session.stepper.rest()

    # ---- between commands ----------------------------------------------------------------------------------------

    def _handle_and_report(self, command: Command) -> None:
        """Handle one command. Any error is reported as one `Failed`, and the session is unchanged."""
        were_open = self._finish_records()
        if self.workspace.session is not None:
            self.workspace.session.stepper.discard_ahead()
        if command.facts.ends_trial:
            self.measuring.drop_trial()
        self.reporter.take(command)
        self.activity.begin(command.facts.words)
        try:
            self.handle(command)
        except Cancelled:
            self.reporter.end(command.id, word_of_cancelled(command))
        except Exception as error:
            self.reporter.fail(error, type(command).__name__)
        has_said, self.reporter.work = self.reporter.work is not None, None
        if self.workspace.session is not None and not self._has_work:
            self.watching.catch_up(self.workspace.session)
        if were_open or has_said or not command.facts.is_quiet:
            self.reporter.send_status()

    def handle(self, command: Command) -> None:
        """Handle one command and answer it; raises `InputError` with the reason if it is refused."""
        if command.session:
            raise InputError(f"There is no session {command.session} here: this engine has session 0 and no other.")
        self.workspace.check_has(command.facts.needs)
        HANDLERS[type(command)](self, command)

    def _advance(self, session: Session, reached: Callable[[PhaseReached], None] | None = None) -> None:
        """Run one step and report it. The chunks of a prefill count as one unit together; a chunk that is interrupted
        is undone silently. `reached` is called at each phase of the step, and may delay or cancel it."""
        self.measuring.drop_trial()
        self.activity.begin("reading a prompt" if session.is_prefilling else "a decode step")
        check = self.inbox.check_uninterrupted
        try:
            if reached is None and self._may_read_late(session):
                self._advance_late(session, session.step_late(check))
                return
            self._finish_records()
            record = session.step(check, reached)
            if self._has_whole_records:
                (record,) = with_surprisal(session, (record,), self.reporter)
                self.reporter.work = None
        except Cancelled:
            self.watching.undone(session)
            return
        except Exception as error:
            self._finish_records()
            self.steps.end()
            self.watching.undone(session)
            self._fail_steps(error, "a step")  # before pictures: frees the tensors that the failed step holds
            self.watching.catch_up(session)
            self.reporter.send_status()
            return
        is_half = record.phase == "prefill" and session.sequence(record.sequences[0].seq_id).is_prefilling
        self.steps.done(is_unit=not is_half)
        if not session.has_work:
            self.steps.end()
        self.reporter.answer(self.steps.asked_by, record)
        self.watching.after_step(session, record, is_last=self._pauses_now, is_behind=self._is_behind())
        self.comparing.follow(session)
        if self.breakpoints.evaluate(session, record):
            self.watching.catch_up(session)
        if not (self.reporter.is_inline and self._has_work):  # nobody shows how far an inline run is
            self.reporter.send_status()

    # ---- records that are read late ------------------------------------------------------------------------------

    def _may_read_late(self, session: Session) -> bool:
        """Whether the next step may start before the measurements of this one are read: only in an unpaced decode run
        whose records no condition and no comparison waits for."""
        if session.observer.ring.late_steps == 0 or (self.steps.count is not None and self.steps.count <= 1):
            return False
        is_read = self.breakpoints.is_evaluating or self.comparing.is_on or session.is_prefilling or self.steps.is_paced
        return not is_read

    def _advance_late(self, session: Session, records: list[StepRecord]) -> None:
        """Report after a decode step whose own record comes late; `records` are those of earlier steps, complete by
        now. Pictures show the present, so that all records are completed and sent before them."""
        self.steps.done(is_unit=True)
        if not session.has_work:
            self.steps.end()
        if not self._has_work or self.watching.is_due:
            records += session.observer.complete()
        self._send_records(session, records)
        if not self._has_work:  # also where a record that could not be read has ended the run
            self._finish_records()
            self.watching.catch_up(session)
        self.reporter.send_status()

    def _finish_records(self) -> bool:
        """Wait for and send the records of all finished steps; whether there were any. Raises `DeviceLost` where the
        device that holds the measurements has failed."""
        session = self.workspace.session
        if session is None or not session.observer.num_open:
            return False
        try:
            records = session.observer.complete()
        except Exception as error:  # a device failure: all other errors come with the records, as `take_read_errors`
            raise DeviceLost(first_line(error)) from None
        self._send_records(session, records)
        return True

    def _send_records(self, session: Session, records: list[StepRecord]) -> None:
        """Send records with the pictures that they change; a record that could not be read ends the run."""
        for number, record in enumerate(records, 1):
            is_newest = number == len(records) and not session.observer.num_open
            is_behind = self._is_behind() or not is_newest
            self.reporter.answer(self.steps.asked_by, record)
            self.watching.after_step(session, record, is_last=is_newest and not self._has_work, is_behind=is_behind)
        for why in session.observer.take_read_errors():
            self.steps.end()
            self._fail_steps(why, "reading a step")

    def _fail_steps(self, error: Exception, what: str) -> None:
        """Report a failure to the command that asked for the steps; a further one answers no command."""
        self.reporter.reply_to, self.steps.asked_by = self.steps.asked_by, None
        self.reporter.fail(error, what)

    # ---- steps that pause at each of their phases ----------------------------------------------------------------

    def take_phase(self, session: Session, asked_by: int) -> None:
        """Run one step that pauses at each of its phases, for the command of that id."""
        session.allow_steps()
        self.steps.end()
        self.steps.asked_by = asked_by
        self._advance(session, partial(self._reached, session))

    def _reached(self, session: Session, event: PhaseReached) -> None:
        """Report a phase and wait for the next command; after a `Step` or `Run` the step no longer waits. Raises
        `Cancelled` where the step is given up."""
        self.reporter.reply(event)
        if not isinstance(event.phase, Written) and self.steps.count == 0:
            self.reporter.send_status()
            self.watching.at_phase(session)
            self._wait_in_phase(session)
            self.activity.begin("a step in phases")

    def _wait_in_phase(self, session: Session) -> None:
        """Wait until a command continues the step. Commands that only look are answered meanwhile as between two steps,
        measurements are refused; every other command cancels the step and is handled after it."""
        while True:
            self.reporter.end_all_but()
            command = self.inbox.take() or self.inbox.wait()
            if command is None:
                continue
            if isinstance(command, NextPhase):
                self.reporter.take(command)
                self.steps.asked_by = command.id
                return
            match command.facts.effect:
                case "looks":
                    self._handle_and_report(command)
                case "steps":
                    self._handle_and_report(command)
                    if self.steps.count != 0:
                        return
                case "measures":
                    self._refuse(session, command)
                case "acts":
                    self.inbox.put_first(command)
                    raise Cancelled

    def _refuse(self, session: Session, command: Command) -> None:
        where = session.stepper.phases.suspended if session.stepper.phases is not None else None
        assert where is not None, "a step waits"
        words = f"{where.words[:1].upper()}{where.words[1:]}"
        why = f"{words}. Finish this step, or give it up, before anything is measured or written."
        self.reporter.reply_to = command.id
        self.reporter.fail(InputError(why), type(command).__name__)
