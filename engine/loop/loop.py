"""Commands in, events out: one after the other, with the steps of the session between them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.errors import Cancelled, InputError
from engine.loop.activity import Activity
from engine.loop.duelling import Duelling
from engine.loop.exporting import estimate, export
from engine.loop.inbox import Inbox
from engine.loop.loading import found_models, load_model, session_of
from engine.loop.measuring import Measuring
from engine.loop.opened import Opened
from engine.loop.phases import SuspendedSteps
from engine.loop.prompt_surprisal import SurprisalTeller
from engine.loop.reporter import Reporter
from engine.loop.restoring import redo
from engine.loop.steps_to_do import StepsToDo
from engine.loop.stops import Stops
from engine.loop.watching import Watching
from engine.spec.cache import CacheSpec
from engine.spec.sampling import SamplingParams
from engine.wire.commands import (
    Bench,
    Branch,
    Cancel,
    CheckParity,
    CloseSnapshot,
    Command,
    Continue,
    DeleteBranch,
    EndDuel,
    EstimateExport,
    Export,
    FindModels,
    Force,
    ForceText,
    Fork,
    GoTo,
    LoadModel,
    MakeEdit,
    MapDamage,
    MeasureAttention,
    MeasureRegret,
    NextPhase,
    OpenSnapshot,
    Pause,
    Redo,
    RedoEdit,
    RemoveSequence,
    Run,
    SetCache,
    SetPace,
    SetSampling,
    SetStops,
    Shutdown,
    StartDuel,
    Step,
    StopSequence,
    SubmitPrompt,
    Sweep,
    TakeSlice,
    Tokenize,
    UndoEdit,
    Watch,
    WhatIf,
)
from engine.wire.events import (
    CacheChanged,
    EngineStatus,
    Event,
    Failed,
    Forked,
    ModelsFound,
    NodeAdded,
    Restarted,
    Stopped,
    Submitted,
)
from engine.wire.phases import PhaseReached

if TYPE_CHECKING:
    from engine.model.loader import LoadedModel
    from engine.opened.session import OpenedSession
    from engine.session.session import Session


class EngineLoop:
    """Handles commands one after the other and steps the session between them. `send` may be called from any thread;
    `emit` is called on the thread that runs, and pictures wait where whoever takes them `is_behind`. What it does
    meanwhile stands in `activity`."""

    def __init__(self, emit: Callable[[Event], None], is_behind: Callable[[], bool] = lambda: False) -> None:
        self._is_behind = is_behind
        self.activity = Activity()
        self._inbox = Inbox(self.activity)
        self._reporter = Reporter(emit, self._status, self.activity, self._inbox)
        self._measuring = Measuring(self._reporter, self._inbox)
        self._duelling = Duelling(self._reporter, self._inbox)
        self._steps = StepsToDo()
        self._stops = Stops(self._reporter, self._steps, self._duelling)
        self._surprisal = SurprisalTeller(self._reporter)
        self._session: Session | None = None
        self._cache = CacheSpec()
        self._sampling = SamplingParams()  # of the next prompt that brings none of its own
        self._watching = Watching(self._reporter)
        self._phases = SuspendedSteps(
            self._reporter, self._inbox, self.activity, self._steps, self._watching, self._guard
        )
        self._opened = Opened(self._reporter)
        self._model: LoadedModel | None = None  # of the session before an opened file

    def send(self, command: Command) -> None:
        self._inbox.put(command)

    def run(self) -> None:
        """Work until a `Shutdown` comes."""
        os.environ.setdefault("USE_HUB_KERNELS", "0")  # compiled code from the hub is remote code
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        while True:
            command = self._next_command()
            if isinstance(command, Shutdown):
                break
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
            elif self._opened.has_more:
                self._opened.go_on()
            elif self._measuring.is_trying:
                self.activity.begin("trying another cache")
                self._measuring.go_on()
        self._reporter.emit(Stopped())

    @property
    def _has_work(self) -> bool:
        return self._steps.count != 0 and self._session is not None and self._session.has_work

    def _status(self) -> EngineStatus:
        at_work = self._opened.file or self._session
        if at_work is None:
            status = EngineStatus(None, self._cache, self._sampling, (), None, running=False, work=self._reporter.work)
        else:
            status = at_work.status(self._sampling, self._reporter.work, running=self._has_work)
        return self._stops.told_in(status, self._session)

    def _next_command(self) -> Command | None:
        """The next command; None when there is none and there is work to do. Waits when there is neither, and for the
        pace of a run."""
        if (command := self._inbox.take()) is not None or self._has_time_for_surprisal:
            return command
        if not self._has_work:
            has_more = self._measuring.is_trying or self._duelling.has_more or self._opened.has_more
            return None if has_more else self._inbox.wait()
        rest_s = self._steps.rest_s
        is_due = rest_s <= 0 or (self._session is not None and self._session.is_prefilling)
        return None if is_due else self._inbox.wait(rest_s)

    @property
    def _has_time_for_surprisal(self) -> bool:
        return self._surprisal.has_time(self._session, self._steps.rest_s if self._has_work else None)

    # ---- between commands ----------------------------------------------------------------------------------------

    def _guard(self, command: Command) -> None:
        """Handle one command; whatever goes wrong becomes one `Failed` and changes nothing else."""
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
        if has_said or not isinstance(command, TakeSlice | Watch | Tokenize | WhatIf):
            self._reporter.tell()

    def _advance(self, session: Session, reached: Callable[[PhaseReached], None] | None = None) -> None:
        """One unit of work; a prefill counts as one unit, however many chunks it takes. A chunk that is interrupted is
        undone, and nothing is said of it. `reached` is told of its phases, and may hold it up or give it up."""
        self._measuring.drop_trial()
        self.activity.begin("reading a prompt" if session.is_prefilling else "a decode step")
        try:
            record = session.step(self._inbox.check_uninterrupted, reached)
        except Cancelled:
            self._watching.undone(session)
            return
        except Exception as error:
            self._steps.end()
            self._reporter.reply_to = self._steps.asked_by
            self._watching.undone(session)
            self._reporter.fail(error, "a step")
            self._reporter.tell()
            return
        is_half = record.phase == "prefill" and session.sequence(record.sequences[0].seq_id).is_prefilling
        self._steps.done(is_unit=not is_half)
        if not session.has_work:
            self._steps.end()
        self._reporter.emit(record)
        self._watching.after_step(session, record, is_last=not self._has_work, is_behind=self._is_behind())
        self._duelling.follow(session)
        if self._stops.halt(session, record):
            self._watching.catch_up(session)
        self._reporter.tell()

    # ---- commands ------------------------------------------------------------------------------------------------

    def _handle(self, command: Command) -> None:
        if command.session:
            raise InputError(f"There is no session {command.session} here: this engine has session 0 and no other.")
        match command:
            case LoadModel():
                self._load(command)
            case FindModels():
                self._reporter.reply(ModelsFound(found_models()))
            case Pause() | Cancel():
                self._steps.pause()
                if isinstance(command, Cancel):
                    self._duelling.stop()
            case SetPace():
                self._steps.set_pace(command)
                self._watching.set_pace(command)
            case SetStops():
                self._stops.set(command)
            case OpenSnapshot():
                self._open(command)
            case Continue() | CloseSnapshot():
                self._leave_file(command)
            case StartDuel() | EndDuel() | TakeSlice(side=str()) if at_work := self._opened.snapshot or self._session:
                self._duelling.handle(at_work, command)
            case _ if self._opened.file is not None:
                self._opened.handle(command)
            case _ if self._session is None:
                raise InputError("There is no model yet: load one first.")
            case _:
                self._handle_in(self._session, command)

    def _handle_in(self, session: Session, command: Command) -> None:
        match command:
            case SubmitPrompt():
                self._submit(session, command)
            case Step():
                session.check_has_work()
                self._steps.step(command)
            case Run():
                session.check_has_work()
                self._stops.begin(command, session)
                self._steps.run(command)
            case MeasureAttention():
                self._stops.measure(session, command)
            case NextPhase():
                self._next_phase(session, command)
            case SetSampling(sampling, None):
                self._sampling = sampling
            case SetSampling(sampling, int(seq_id)):
                session.set_sampling(sampling, seq_id)
            case Watch():
                self._watching.watch(session, command)
            case Redo():
                self._steps.end()
                self._watching.forget()
                redo(session, command, self._reporter, self._inbox)
                self._cache = session.cache
            case Export():
                export(session, command, self._reporter)
            case EstimateExport():
                estimate(session, command, self._reporter)
            case WhatIf() | CheckParity() | MapDamage() | MeasureRegret() | Sweep() | Bench():
                self._measuring.measure(session, command)
            case SetCache(spec) if spec == session.cache:
                return  # converting or filling it again would change nothing, and cost what it costs
            case SetCache() | GoTo() | Branch() | UndoEdit() | RedoEdit() | MakeEdit():
                self._change_present(session, command)
            case (
                DeleteBranch()
                | Force()
                | ForceText()
                | Fork()
                | StopSequence()
                | RemoveSequence()
                | TakeSlice()
                | Tokenize()
            ):
                from engine.session.apply import apply

                if (answer := apply(session, command)) is not None:
                    if isinstance(answer, Forked):
                        self._reporter.tell()  # the status that has the new sequence comes first
                    self._reporter.reply(answer)
                if isinstance(command, RemoveSequence):
                    self._duelling.follow(session)

    def _load(self, command: LoadModel) -> None:
        """A model is taken over only when it is whole; until then the old one, or the opened file, lives on. A model
        that fits the file goes on from it, as far as the file can be read."""
        self._steps.end()
        if self._session is None:
            self._cache = command.cache
        model = load_model(command.model, self._reporter, self.activity, is_first=self._session is None)
        self._inbox.check_uncancelled()
        if self._opened.saved is not None and self._opened.fits(model):
            self._rebuild(model, self._opened.saved)
        elif (resumed := self._opened.resumed_where_it_fits(model)) is not None:
            self._go_on(*resumed)
        else:
            self._begin_anew(model, command.cache)

    def _begin_anew(self, model: LoadedModel, cache: CacheSpec) -> None:
        self._take_over(session_of(model, cache), "another model was loaded")
        self._reporter.reply(Restarted())

    def _take_over(self, session: Session, why: str) -> None:
        self._duelling.end(why)
        self._session, self._cache, self._model = session, session.cache, None
        self._opened.close()
        self._stops.forget()
        self._watching.begin()

    # ---- an opened file ------------------------------------------------------------------------------------------

    def _open(self, command: OpenSnapshot) -> None:
        """A file stands in place of the session, whose model is kept in case it goes on from there."""
        file = self._opened.read(command, has_model=(self._session or self._model) is not None)
        self._steps.end()
        self._duelling.end("a file was opened")
        if self._session is not None:
            self._model = self._session.model
        self._session = None
        self._opened.take_over(file)

    def _leave_file(self, command: Continue | CloseSnapshot) -> None:
        """Go on from it, or close it, with the model loaded before where there is one that will do."""
        goes_on, model = isinstance(command, Continue), self._model
        self._opened.check_can_be_left(goes_on=goes_on)
        if model is None or (goes_on and not self._opened.fits(model)):
            model = load_model(command.model, self._reporter, self.activity, is_first=model is None)
            self._inbox.check_uncancelled()
        if goes_on:
            self._go_on_from_file(model, may_open_files=isinstance(command, Continue) and command.may_open_files)
        else:
            self._begin_anew(model, self._cache)

    def _go_on_from_file(self, model: LoadedModel, *, may_open_files: bool) -> None:
        """With the model that the opened file ran."""
        if self._opened.saved is not None:
            self._rebuild(model, self._opened.saved, may_open_files=may_open_files)
        else:
            self._go_on(*self._opened.resumed(model))

    def _rebuild(self, model: LoadedModel, file: OpenedSession, *, may_open_files: bool = False) -> None:
        """Its moments are told anew, with their numbers."""
        from engine.loop.rebuilding import rebuilt

        if why_not := file.why_not(model.info):
            raise InputError(f"'{file.path}' cannot be gone on from: {why_not}.")
        done = rebuilt(model, file, self._reporter, self._inbox, may_open_files=may_open_files)
        self._take_over(done.session, "the opened session goes on")
        self._sampling = file.saved.sampling
        self._reporter.reply(Restarted())
        self._reporter.tell()
        for event in done.events:
            self._reporter.emit(event)
        self._reporter.reply(done.said)
        self._reporter.tell()
        self._reporter.reply(done.answer)
        if done.warning:
            self._reporter.reply(Failed(done.warning))

    def _go_on(self, session: Session, changed: CacheChanged) -> None:
        """Its sequence lives again; what was told of its steps stays."""
        self._take_over(session, "the opened snapshot goes on")
        self._reporter.tell()
        self._reporter.reply(changed)

    def _submit(self, session: Session, command: SubmitPrompt) -> None:
        if command.num_steps < 0:
            raise InputError(f"{command.num_steps} steps cannot follow a prompt: give 0 or more.")
        old = [info.seq_id for info in session.sequences]
        prompt = replace(command.prompt, sampling=command.prompt.sampling or self._sampling)
        was_running = self._has_work
        seq_id = session.submit(prompt)  # a prompt that is refused must not cost the run before it
        if command.alone:
            for other in old:
                session.remove(other)
            session.forget_history()
            self._watching.forget()
            self._stops.forget()
            self._duelling.follow(session)
            self._reporter.reply(Restarted())
        self._steps.submit(command, was_running=was_running)
        ids = tuple(session.sequence(seq_id).token_ids)
        self._reporter.tell()  # the status that has the new sequence comes first
        self._reporter.reply(Submitted(seq_id, ids, tuple(map(session.text_of, ids))))
        if command.in_phases:
            self._next_phase(session, command)

    def _next_phase(self, session: Session, command: SubmitPrompt | NextPhase) -> None:
        session.check_has_work()
        self._steps.end()
        self._steps.asked_by = command.id
        self._advance(session, self._phases.take(session))

    def _change_present(
        self, session: Session, command: SetCache | GoTo | Branch | UndoEdit | RedoEdit | MakeEdit
    ) -> None:
        """The rows of now become others: whoever watches asks again."""
        from engine.session.apply import apply, edit

        if isinstance(command, SetCache):
            self._reporter.begin("Changing the cache", can_cancel=False)
        elif isinstance(command, MakeEdit):
            self._reporter.begin("Making an edit")
        else:
            self._steps.end()
            self._reporter.begin("Going to another moment")
        check = self._inbox.check_uncancelled
        answers = edit(session, command, check) if isinstance(command, MakeEdit) else (apply(session, command, check),)
        self._cache = session.cache
        for node in session.history.take_added():
            self._reporter.reply(NodeAdded(node, is_live=False))
        self._watching.forget()
        for answer in answers:
            if answer is not None:
                self._reporter.reply(answer)
        self._stops.stand_at(session.last_step)
        self._duelling.begin_anew(session)
