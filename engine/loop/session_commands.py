"""Commands to a live session: what each of them does to it, and what it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.errors import InputError
from engine.loop.duelling import Duelling
from engine.loop.exporting import estimate, export
from engine.loop.inbox import Inbox
from engine.loop.measuring import Measuring
from engine.loop.present import Present
from engine.loop.reporter import Reporter
from engine.loop.restoring import redo
from engine.loop.steps_to_do import StepsToDo
from engine.loop.stops import Stops
from engine.loop.watching import Watching
from engine.spec.sampling import Prompt
from engine.wire.commands import (
    Branch,
    ChoosePagedAttention,
    ChooseRunner,
    Command,
    DeleteBranch,
    Force,
    ForceText,
    Fork,
    GoTo,
    JoinBranches,
    MakeEdit,
    PreviewPrompt,
    Redo,
    RedoEdit,
    RemoveSequence,
    Run,
    SetCache,
    SetKeptLimit,
    SetSampling,
    Step,
    StopSequence,
    SubmitPrompt,
    TakeSlice,
    Tokenize,
    UndoEdit,
    Watch,
)
from engine.wire.events import Forked, NodeAdded, Restarted, Submitted
from engine.wire.exporting import EstimateExport, Export
from engine.wire.measuring import Bench, CheckParity, MapDamage, MeasureRegret, Sweep, WhatIf
from engine.wire.stopping import MeasureAttention

if TYPE_CHECKING:
    from engine.session.apply import SessionCommand
    from engine.session.session import Session


class SessionCommands:
    """Handles each of them between two steps; raises where it cannot be done, and the session stays as it is."""

    def __init__(
        self,
        present: Present,
        reporter: Reporter,
        inbox: Inbox,
        steps: StepsToDo,
        stops: Stops,
        watching: Watching,
        duelling: Duelling,
        measuring: Measuring,
    ) -> None:
        self._present, self._reporter, self._inbox = present, reporter, inbox
        self._steps, self._stops, self._watching = steps, stops, watching
        self._duelling, self._measuring = duelling, measuring

    def handle(self, session: Session, command: Command) -> None:
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
            case SetSampling(sampling, None):
                self._present.sampling = sampling
            case SetKeptLimit(num_bytes):
                self._present.set_kept_limit(num_bytes)
            case SetSampling(sampling, int(seq_id)):
                session.set_sampling(sampling, seq_id)
            case ChooseRunner(runner):
                session.model.runners.choose(runner)
            case ChoosePagedAttention(way):
                session.model.runners.pages.choose(way)
            case Watch():
                self._watching.watch(session, command)
            case Redo():
                self._steps.end()
                self._watching.forget()
                redo(session, command, self._reporter, self._inbox)
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
            case JoinBranches(steps):
                self._join(session, steps)
            case DeleteBranch() | Force() | ForceText() | Fork() | StopSequence() | RemoveSequence():
                self._apply(session, command)
            case TakeSlice() | Tokenize() | PreviewPrompt():
                self._apply(session, command)

    def _apply(self, session: Session, command: SessionCommand) -> None:
        from engine.session.apply import apply

        if (answer := apply(session, command)) is not None:
            if isinstance(answer, Forked):
                self._reporter.tell()  # the status that has the new sequence comes first
            self._reporter.reply(answer)
        if isinstance(command, RemoveSequence):
            self._duelling.follow(session)

    def _join(self, session: Session, steps: tuple[int, ...]) -> None:
        from engine.session.branching import join

        made = join(session, steps)
        self._reporter.tell()  # the status that has the new sequences comes first
        for forked in made:
            self._reporter.reply(forked)

    def _submit(self, session: Session, command: SubmitPrompt) -> None:
        if command.num_steps < 0:
            raise InputError(f"{command.num_steps} steps cannot follow a prompt: give 0 or more.")
        old = [info.seq_id for info in session.sequences]
        prompt = replace(command.prompt, sampling=command.prompt.sampling or self._present.sampling)
        was_running = self._steps.count != 0 and session.has_work
        if command.after is not None:
            self._go_on(session, command, command.after, prompt, was_running=was_running)
            return
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
        self._reporter.tell()  # the status that has the new sequence comes first
        self._tell_submitted(session, seq_id)

    def _tell_submitted(self, session: Session, seq_id: int) -> None:
        sequence = session.sequence(seq_id)
        ids = tuple(sequence.token_ids)
        self._reporter.reply(Submitted(seq_id, ids, tuple(map(session.text_of, ids)), sequence.note))

    def _go_on(self, session: Session, command: SubmitPrompt, after: int, prompt: Prompt, *, was_running: bool) -> None:
        """The prompt in the place of a sequence; the history goes on."""
        from engine.session.continuing import go_on

        seq_id = go_on(session, after, prompt)
        self._duelling.follow(session)
        self._steps.submit(replace(command, alone=False), was_running=was_running)
        self._reporter.tell()
        reuse = session.sequence(seq_id).continued
        if reuse is not None and reuse.num_reused:
            how = "kept as they are"
            self._reporter.reply(Forked(after, seq_id, session.last_step, reuse.num_reused, how))
        self._tell_submitted(session, seq_id)

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
        for node in session.history.take_added():
            self._reporter.reply(NodeAdded(node, is_live=False))
        self._watching.forget()
        for answer in answers:
            if answer is not None:
                self._reporter.reply(answer)
        self._stops.stand_at(session.last_step)
        self._duelling.begin_anew(session)
