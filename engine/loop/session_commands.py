"""Handles the commands to a live session and answers them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.errors import InputError
from engine.loop.duelling import Duelling
from engine.loop.exporting import estimate, export
from engine.loop.inbox import Inbox
from engine.loop.measuring import MeasurementRunner
from engine.loop.reporter import Reporter
from engine.loop.restoring import redo
from engine.loop.steps_to_do import StepsToDo
from engine.loop.stops import StopConditions
from engine.loop.watching import Watching
from engine.loop.workspace import Workspace
from engine.spec.sampling import Prompt
from engine.wire.commands import (
    BeginBranch,
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
from engine.wire.edits import EditMeasured
from engine.wire.events import BranchDeleted, CacheChanged, ForkMade, NodeAdded, Restarted, Submitted, Tokenized, WentTo
from engine.wire.exporting import EstimateExport, Export
from engine.wire.measuring import Bench, CheckParity, MapDamage, MeasureRegret, Sweep, WhatIf
from engine.wire.stopping import MeasureAttention

if TYPE_CHECKING:
    from engine.session.session import Session

ChangeCommand = SetCache | GoTo | BeginBranch | UndoEdit | RedoEdit | MakeEdit  # commands that replace the live rows
ChangeAnswer = CacheChanged | WentTo | NodeAdded | EditMeasured


class SessionCommands:
    """Handles commands to the session between two steps. Where one raises, the session is unchanged."""

    def __init__(
        self,
        workspace: Workspace,
        reporter: Reporter,
        inbox: Inbox,
        steps: StepsToDo,
        stops: StopConditions,
        watching: Watching,
        duelling: Duelling,
        measuring: MeasurementRunner,
    ) -> None:
        self._workspace, self._reporter, self._inbox = workspace, reporter, inbox
        self._steps, self._stops, self._watching = steps, stops, watching
        self._duelling, self._measuring = duelling, measuring

    def handle(self, session: Session, command: Command) -> None:
        """Handle one command and answer it."""
        from engine.session.branching import delete_branch, join
        from engine.session.continuing import preview
        from engine.session.prompt import encode

        reply = self._reporter.reply
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
                self._workspace.sampling = sampling
            case SetKeptLimit(num_bytes):
                self._workspace.set_kept_limit(num_bytes)
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
                return  # the mode is this one already: converting again would change nothing and take time
            case SetCache() | GoTo() | BeginBranch() | UndoEdit() | RedoEdit() | MakeEdit():
                self._change_present(session, command)
            case DeleteBranch(step):
                reply(BranchDeleted(delete_branch(session, step)))
            case Fork(seq_id, at_step):
                self._report_forks(session.fork(seq_id, at_step))
            case JoinBranches(steps):
                self._report_forks(*join(session, steps))
            case Force(seq_id, token_ids):
                session.force(seq_id, token_ids)
            case ForceText(seq_id, text):
                session.force_text(seq_id, text)
            case StopSequence(seq_id):
                session.halt(seq_id)
            case RemoveSequence(seq_id):
                session.remove(seq_id)
                self._duelling.follow(session)
            case TakeSlice(request, node=node):
                reply(session.take_slice(request, node))
            case Tokenize(text):
                ids = encode(session.model, Prompt(text=text)) if text else []
                reply(Tokenized(tuple(ids), tuple(map(session.text_of, ids))))
            case PreviewPrompt():
                reply(preview(session, command))

    def _report_forks(self, *made: ForkMade) -> None:
        self._reporter.send_status()  # the status that has the new sequences comes first
        for forked in made:
            self._reporter.reply(forked)

    def _submit(self, session: Session, command: SubmitPrompt) -> None:
        if command.num_steps is not None and command.num_steps < 0:
            raise InputError(f"{command.num_steps} steps cannot follow a prompt: give 0 or more.")
        old = [info.seq_id for info in session.sequences]
        prompt = replace(command.prompt, sampling=command.prompt.sampling or self._workspace.sampling)
        was_running = self._steps.count != 0 and session.has_work
        if command.after is not None:
            self._continue_with(session, command, command.after, prompt, was_running=was_running)
            return
        seq_id = session.submit(prompt)  # first: a prompt that is refused must not end what runs
        if command.alone:
            for other in old:
                session.remove(other)
            session.forget_history()
            self._watching.forget()
            self._stops.forget()
            self._duelling.follow(session)
            self._reporter.reply(Restarted())
        self._steps.submit(command, was_running=was_running)
        self._reporter.send_status()  # the status that has the new sequence comes first
        self._report_submitted(session, seq_id)

    def _report_submitted(self, session: Session, seq_id: int) -> None:
        sequence = session.sequence(seq_id)
        ids = tuple(sequence.token_ids)
        self._reporter.reply(Submitted(seq_id, ids, tuple(map(session.text_of, ids)), sequence.note))

    def _continue_with(
        self, session: Session, command: SubmitPrompt, after: int, prompt: Prompt, *, was_running: bool
    ) -> None:
        """Replace the sequence `after` by one for the prompt that reuses its rows; the history goes on."""
        from engine.session.continuing import continue_with

        seq_id = continue_with(session, after, prompt)
        self._duelling.follow(session)
        self._steps.submit(replace(command, alone=False), was_running=was_running)
        self._reporter.send_status()
        reuse = session.sequence(seq_id).continued
        if reuse is not None and reuse.num_reused:
            how = "kept as they are"
            self._reporter.reply(ForkMade(after, seq_id, session.last_step, reuse.num_reused, how))
        self._report_submitted(session, seq_id)

    def _change_present(self, session: Session, command: ChangeCommand) -> None:
        """Handle a command that replaces the live rows; watched pictures are dropped, and the client asks again."""
        if isinstance(command, SetCache):
            self._reporter.begin("Changing the cache", can_cancel=False)
        elif isinstance(command, MakeEdit):
            self._reporter.begin("Making an edit")
        else:
            self._steps.end()
            self._reporter.begin("Going to another moment")
        answers = self._changed(session, command)
        for node in session.history.take_added():
            self._reporter.reply(NodeAdded(node, is_live=False))
        self._watching.forget()
        for answer in answers:
            self._reporter.reply(answer)
        self._stops.set_live_step(session.last_step)
        self._duelling.restart(session)

    def _changed(self, session: Session, command: ChangeCommand) -> tuple[ChangeAnswer, ...]:
        """Make the change and return the answers; raises and changes nothing on failure."""
        from engine.session.branching import branch, redo_edit, undo_edit
        from engine.session.editing import make_edit

        began, check = time.perf_counter(), self._inbox.check_uncancelled
        went: str | None  # how the rows came; None where the live node stayed
        match command:
            case SetCache(spec):
                how = session.set_cache(spec)
                return (CacheChanged(spec, how, (time.perf_counter() - began) * 1e3, session.bytes()),)
            case MakeEdit(edit):
                return make_edit(session, edit, check)
            case GoTo(step):
                went = session.go_to(step, check)
            case BeginBranch():
                went = branch(session, command, check)
            case UndoEdit():
                went = undo_edit(session, check)
            case RedoEdit():
                went = redo_edit(session, check)
        took_ms = (time.perf_counter() - began) * 1e3
        return () if went is None else (WentTo(session.last_step, went, took_ms),)
