"""Commands in, events out: one after the other, with the steps of the session between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.errors import Cancelled, DeviceLost, InputError, first_line
from engine.loop.activity import Activity
from engine.loop.duelling import Duelling
from engine.loop.inbox import Inbox
from engine.loop.loading import forecast_of, found_devices, found_models
from engine.loop.measuring import MeasurementRunner
from engine.loop.phases import SuspendedSteps
from engine.loop.present import Present
from engine.loop.prompt_surprisal import SurprisalTeller
from engine.loop.reporter import Reporter
from engine.loop.session_commands import SessionCommands
from engine.loop.steps_to_do import StepsToDo
from engine.loop.stops import StopConditions
from engine.loop.watching import Watching
from engine.wire.commands import (
    Cancel,
    CloseSnapshot,
    Command,
    Continue,
    EndDuel,
    FindModels,
    LoadModel,
    NextPhase,
    OpenSnapshot,
    Pause,
    PreviewPrompt,
    SetCapture,
    SetPace,
    Shutdown,
    StartDuel,
    SubmitPrompt,
    TakeSlice,
    Tokenize,
    Watch,
)
from engine.wire.devices import FindDevices, ForecastLoad, UnloadModel
from engine.wire.events import EngineLost, Event, Failed, ModelsFound, Stopped
from engine.wire.measuring import WhatIf
from engine.wire.phases import PhaseReached
from engine.wire.status import EngineStatus
from engine.wire.stopping import SetStops

if TYPE_CHECKING:
    from engine.session.session import Session
    from engine.wire.records import StepRecord

LONG_WAIT_S = 0.25  # of a run for its pace


class EngineLoop:
    """Handles commands one after the other and steps the session between them. `send` may be called from any thread;
    `emit` is called on the thread that runs, and pictures wait where whoever takes them `is_behind`. What it does
    meanwhile stands in `activity`."""

    def __init__(self, emit: Callable[[Event], None], is_behind: Callable[[], bool] = lambda: False) -> None:
        self._is_behind = is_behind
        self.activity = Activity()
        self._inbox = Inbox(self.activity)
        self._reporter = Reporter(emit, self._status, self.activity, self._inbox)
        self._measuring = MeasurementRunner(self._reporter, self._inbox)
        self._duelling = Duelling(self._reporter, self._inbox)
        self._steps = StepsToDo()
        self._stops = StopConditions(self._reporter, self._steps, self._duelling)
        self._surprisal = SurprisalTeller(self._reporter)
        self._watching = Watching(self._reporter)
        self._phases = SuspendedSteps(
            self._reporter, self._inbox, self.activity, self._steps, self._watching, self._guard
        )
        parts = self._steps, self._stops, self._watching, self._duelling
        self._present = Present(self._reporter, self._inbox, self.activity, *parts)
        self._reporter.memory = self._present.memory
        self._in_session = SessionCommands(self._present, self._reporter, self._inbox, *parts, self._measuring)

    def send(self, command: Command) -> None:
        self._inbox.put(command)

    def run(self) -> None:
        """Work until a `Shutdown` comes. Once a device has failed, nothing is done any more: whoever listens begins
        again, there or elsewhere."""
        try:
            shutdown = self._work()
        except DeviceLost as lost:
            shutdown = self._refuse_all(f"{self._present.device} does not work any more ({lost})")
        self._reporter.answer(shutdown.id, Stopped())

    def _refuse_all(self, cause: str) -> Shutdown:
        self._reporter.emit(EngineLost(cause))
        while not isinstance(command := self._inbox.take() or self._inbox.wait(), Shutdown):
            if command is not None:
                self._reporter.answer(command.id, Failed(f"{cause}: restart the engine."))
        return command

    def _work(self) -> Shutdown:
        while True:
            command = self._next_command()
            if isinstance(command, Shutdown):
                return command
            if command is not None:
                self._guard(command)
            elif self._session is not None and self._has_time_for_surprisal:
                self.activity.begin("the surprisal of a prompt")
                self._surprisal.go_on(self._session)
            elif self._session is not None and self._has_work:
                self._advance(self._session)
            elif self._duelling.has_more:
                self.activity.begin("the other run of a comparison")
                self._duelling.go_on(self._session)
            elif self._present.opened.has_more:
                self._present.opened.go_on()
            elif self._measuring.is_trying:
                self.activity.begin("trying another cache")
                self._measuring.go_on()

    @property
    def _session(self) -> Session | None:
        return self._present.session

    @property
    def _has_work(self) -> bool:
        return self._steps.count != 0 and self._session is not None and self._session.has_work

    @property
    def _wait_s(self) -> float:
        """How long the next step has to wait for the pace of a run; chunks of a prompt wait for none."""
        return 0.0 if self._session is not None and self._session.is_prefilling else self._steps.rest_s

    @property
    def _rests_now(self) -> bool:
        """Whether no step follows, or none for so long that what is shown meanwhile has to be whole."""
        return not self._has_work or self._wait_s > LONG_WAIT_S

    def _status(self) -> EngineStatus:
        at_work = self._present.at_work
        if at_work is None:
            cache, sampling = self._present.cache, self._present.sampling
            status = EngineStatus(None, cache, sampling, (), None, running=False, work=self._reporter.work)
        else:
            status = at_work.status(self._present.sampling, self._reporter.work, running=self._has_work)
        return self._stops.told_in(status, self._session)

    def _next_command(self) -> Command | None:
        """The next command; None when there is none and there is work to do. Waits when there is neither, and for the
        pace of a run."""
        if (command := self._inbox.take()) is not None or self._has_time_for_surprisal:
            return command
        if not self._has_work:
            self._rest()
            has_more = self._measuring.is_trying or self._duelling.has_more or self._present.opened.has_more
            return None if has_more else self._inbox.wait()
        if (wait_s := self._wait_s) <= 0:
            return None
        self._rest()
        return self._inbox.wait(wait_s)

    def _rest(self) -> None:
        """The next step does not follow the newest one at once."""
        if self._session is not None:
            self._session.rest()

    @property
    def _has_time_for_surprisal(self) -> bool:
        return self._surprisal.has_time(self._session, self._steps.rest_s if self._has_work else None)

    # ---- between commands ----------------------------------------------------------------------------------------

    def _guard(self, command: Command) -> None:
        """Handle one command; whatever goes wrong becomes one `Failed` and changes nothing else."""
        were_open = self._finish_records()
        if self._session is not None:
            self._session.discard_ahead()
        self._measuring.drop_trial_for(command)
        self._reporter.reply_to = command.id
        self.activity.begin(command)
        try:
            self._handle(command)
        except Cancelled:
            pass  # the status says that it is not worked on any more
        except Exception as error:
            self._reporter.fail(error, type(command).__name__)
        has_said, self._reporter.work = self._reporter.work is not None, None
        if not self._has_work and self._session is not None:
            self._watching.catch_up(self._session)
        silent = TakeSlice | Watch | Tokenize | PreviewPrompt | WhatIf | ForecastLoad
        if were_open or has_said or not isinstance(command, silent):
            self._reporter.tell()

    def _advance(self, session: Session, reached: Callable[[PhaseReached], None] | None = None) -> None:
        """One unit of work; a prefill counts as one unit, however many chunks it takes. A chunk that is interrupted is
        undone, and nothing is said of it. `reached` is told of its phases, and may hold it up or give it up."""
        self._measuring.drop_trial()
        self.activity.begin("reading a prompt" if session.is_prefilling else "a decode step")
        check = self._inbox.check_uninterrupted
        try:
            if reached is None and self._may_read_late(session):
                self._advance_late(session, session.step_late(check))
                return
            self._finish_records()
            record = session.step(check, reached)
        except Cancelled:
            self._watching.undone(session)
            return
        except Exception as error:
            self._finish_records()
            self._steps.end()
            self._watching.undone(session)
            self._reporter.reply_to = self._steps.asked_by
            self._reporter.fail(error, "a step")  # before pictures: what was computed for the step is let go of
            self._watching.catch_up(session)
            self._reporter.tell()
            return
        is_half = record.phase == "prefill" and session.sequence(record.sequences[0].seq_id).is_prefilling
        self._steps.done(is_unit=not is_half)
        if not session.has_work:
            self._steps.end()
        self._reporter.answer(self._steps.asked_by, record)
        self._watching.after_step(session, record, is_last=self._rests_now, is_behind=self._is_behind())
        self._duelling.follow(session)
        if self._stops.halt(session, record):
            self._watching.catch_up(session)
        self._reporter.tell()

    # ---- records that are read late ------------------------------------------------------------------------------

    def _may_read_late(self, session: Session) -> bool:
        """Whether steps may go on before what they measured is read: in a run that nothing in it can end or follow."""
        is_run = self._steps.count is None or self._steps.count > 1
        is_read = self._stops.is_asking or self._duelling.is_on or session.is_prefilling or self._steps.is_paced
        return session.ring.late_steps > 0 and is_run and not is_read

    def _advance_late(self, session: Session, records: list[StepRecord]) -> None:
        """A decode step is done; `records` are those of steps before it that are complete by now. Pictures show the
        present: all records are told before them."""
        self._steps.done(is_unit=True)
        if not session.has_work:
            self._steps.end()
        if not self._has_work or self._watching.is_due:
            records += session.finish_records()
        self._tell_records(session, records)
        if not self._has_work:  # one that could not be read has ended the run
            self._finish_records()
            self._watching.catch_up(session)
        self._reporter.tell()

    def _finish_records(self) -> bool:
        """Tell the records of all steps that are done; whether there were any. Raises `DeviceLost` where the device
        fails that has the rest."""
        if self._session is None or not self._session.has_open_records:
            return False
        try:
            records = self._session.finish_records()
        except Exception as error:  # of a device: whatever else fails is told with the records
            raise DeviceLost(first_line(error)) from None
        self._tell_records(self._session, records)
        return True

    def _tell_records(self, session: Session, records: list[StepRecord]) -> None:
        for number, record in enumerate(records, 1):
            is_newest = number == len(records) and not session.has_open_records
            is_behind = self._is_behind() or not is_newest
            self._reporter.answer(self._steps.asked_by, record)
            self._watching.after_step(session, record, is_last=is_newest and not self._has_work, is_behind=is_behind)
        for why in session.take_unread():
            self._steps.end()
            self._reporter.reply_to = self._steps.asked_by
            self._reporter.fail(why, "reading a step")

    # ---- commands ------------------------------------------------------------------------------------------------

    def _handle(self, command: Command) -> None:
        if command.session:
            raise InputError(f"There is no session {command.session} here: this engine has session 0 and no other.")
        match command:
            case LoadModel():
                self._present.load(command)
            case FindModels():
                self._reporter.reply(ModelsFound(found_models()))
            case FindDevices():
                self._reporter.reply(found_devices())
            case ForecastLoad():
                self._reporter.reply(forecast_of(command, self._present.held))
            case UnloadModel():
                self._present.unload()
            case Pause() | Cancel():
                self._steps.pause()
                if isinstance(command, Cancel):
                    self._duelling.stop()
            case SetPace():
                self._steps.set_pace(command)
                self._watching.set_pace(command)
            case SetCapture():
                self._present.set_capture(command)
            case SetStops():
                self._stops.set(command)
            case OpenSnapshot():
                self._present.open(command)
            case Continue() | CloseSnapshot():
                self._present.leave_file(command)
            case StartDuel() | EndDuel() | TakeSlice(side=str()) if (
                at_work := self._present.opened.snapshot or self._session
            ):
                self._duelling.handle(at_work, command, self._present.model)
            case _ if self._present.opened.file is not None:
                self._present.opened.handle(command)
            case _ if self._session is None:
                raise InputError("There is no model yet: load one first.")
            case NextPhase():
                self._take_phase(self._session, command)
            case _:
                self._in_session.handle(self._session, command)
                if isinstance(command, SubmitPrompt) and command.in_phases:
                    self._take_phase(self._session, command)

    def _take_phase(self, session: Session, command: SubmitPrompt | NextPhase) -> None:
        session.check_has_work()
        self._steps.end()
        self._steps.asked_by = command.id
        self._advance(session, self._phases.take(session))
