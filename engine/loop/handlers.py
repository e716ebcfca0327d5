"""The handler of each type of command. Where a handler raises, the session is unchanged."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from engine.errors import Cancelled, InputError
from engine.loop import replaying
from engine.loop.watching import with_surprisal
from engine.spec.sampling import Prompt
from engine.wire import breakpoints, commands, devices, measurements, serving
from engine.wire.events import (
    BranchDeleted,
    CacheChanged,
    Event,
    FolderListed,
    ForkMade,
    ModelsFound,
    NodeAdded,
    Restarted,
    Submitted,
    Tokenized,
    WentTo,
)
from engine.wire.exporting import EstimateExport, Export, ExportCancelled, Exported
from engine.wire.message import Command

if TYPE_CHECKING:
    from engine.loop.loop import EngineLoop
    from engine.session.session import Session
    from engine.snapshot.read import SnapshotFile


# ---- steps and prompts -----------------------------------------------------------------------------------------------


def _submit(loop: EngineLoop, command: commands.SubmitPrompt) -> None:
    if command.num_steps is not None and command.num_steps < 0:
        raise InputError(f"{command.num_steps} steps cannot follow a prompt: give 0 or more.")
    session = loop.session
    prompt = replace(command.prompt, sampling=command.prompt.sampling or loop.workspace.sampling)
    was_running = loop.steps.count != 0 and session.has_work
    if command.after is not None:
        _continue_with(loop, command, command.after, prompt, was_running=was_running)
    else:
        _begin_with(loop, command, prompt, was_running=was_running)
    if command.in_phases:
        loop.take_phase(session, command.id)


def _begin_with(loop: EngineLoop, command: commands.SubmitPrompt, prompt: Prompt, *, was_running: bool) -> None:
    session = loop.session
    old = [info.seq_id for info in session.sequences]
    seq_id = session.submit(prompt)  # first: a prompt that is refused must not end what runs
    if command.alone:
        for other in old:
            session.remove(other)
        session.forget_history()
        loop.watching.forget()
        loop.breakpoints.forget()
        loop.comparing.follow(session)
        loop.reporter.reply(Restarted())
    loop.steps.submit(command, was_running=was_running)
    loop.reporter.send_status()  # the status that has the new sequence comes first
    _report_submitted(loop, seq_id)


def _continue_with(
    loop: EngineLoop, command: commands.SubmitPrompt, after: int, prompt: Prompt, *, was_running: bool
) -> None:
    """Replace the sequence `after` by one for the prompt that reuses its rows; the history goes on."""
    session = loop.session
    seq_id = session.continue_with(after, prompt)
    loop.comparing.follow(session)
    loop.steps.submit(replace(command, alone=False), was_running=was_running)
    loop.reporter.send_status()
    reuse = session.live.get(seq_id).continued
    if reuse is not None and reuse.num_reused:
        how = "kept as they are"
        loop.reporter.reply(ForkMade(after, seq_id, session.last_step, reuse.num_reused, how))
    _report_submitted(loop, seq_id)


def _report_submitted(loop: EngineLoop, seq_id: int) -> None:
    live = loop.session.live.get(seq_id)
    ids = tuple(live.sequence.token_ids)
    loop.reporter.reply(Submitted(seq_id, ids, tuple(map(loop.session.text_of, ids)), live.note))


def _step(loop: EngineLoop, command: commands.Step) -> None:
    loop.session.allow_steps()
    loop.steps.step(command)


def _run(loop: EngineLoop, command: commands.Run) -> None:
    loop.session.allow_steps()
    loop.breakpoints.begin(command, loop.session)
    loop.steps.run(command)


def _cancel(loop: EngineLoop, _command: commands.Cancel) -> None:
    loop.steps.pause()
    loop.comparing.stop()


def _set_pace(loop: EngineLoop, command: commands.SetPace) -> None:
    loop.steps.set_pace(command)
    loop.watching.set_pace(command)


def _set_sampling(loop: EngineLoop, command: commands.SetSampling) -> None:
    if command.seq_id is None:
        loop.workspace.sampling = command.sampling
    else:
        loop.session.set_sampling(command.sampling, command.seq_id)


def _tokenize(loop: EngineLoop, command: commands.Tokenize) -> None:
    from engine.session.commands import encode

    session = loop.session
    ids = encode(session.model, Prompt(text=command.text)).token_ids if command.text else []
    loop.reporter.reply(Tokenized(tuple(ids), tuple(map(session.text_of, ids))))


def _servers(loop: EngineLoop, command: serving.AttachServer | serving.DetachServer | serving.RecordServer) -> None:
    raise InputError(f"{command.server} runs elsewhere: the window listens to it, not this engine.")


def _prefixes(loop: EngineLoop, command: serving.TakePrefixTree | serving.ExplainPrefix) -> None:
    from engine.session.prefixes import answer_of

    if command.server:
        raise InputError(f"{command.server} is not attached to this engine.")
    loop.workspace.check_has("session")
    loop.reporter.reply(answer_of(loop.session, command))


# ---- the history tree and its sequences ------------------------------------------------------------------------------


def _redo(loop: EngineLoop, command: commands.Redo) -> None:
    loop.steps.end()
    loop.watching.forget()
    replaying.redo(loop.session, command, loop.reporter, loop.inbox)


def _set_cache(loop: EngineLoop, command: commands.SetCache) -> None:
    session, spec, began = loop.session, command.cache, time.perf_counter()
    if spec == session.cache:
        return  # the mode is this one already: converting again would change nothing and take time
    loop.reporter.begin("Changing the cache", can_cancel=False)
    how = session.set_cache(spec)
    _report_other_rows(loop, CacheChanged(spec, how, (time.perf_counter() - began) * 1e3, session.bytes()))


def _make_edit(loop: EngineLoop, command: commands.MakeEdit) -> None:
    from engine.session.edits import make_edit

    session, before, began = loop.session, loop.session.cache, time.perf_counter()
    loop.reporter.begin("Making an edit")
    added, measured = make_edit(session, command.edit, loop.inbox.check_uncancelled)
    took_ms = (time.perf_counter() - began) * 1e3
    changed = () if session.cache == before else (CacheChanged(session.cache, added.how, took_ms, session.bytes()),)
    _report_other_rows(loop, *changed, added, measured)


def _go(loop: EngineLoop, go: Callable[[Callable[[], None]], str | None]) -> None:
    """Go to another step with `go`, which returns how its rows came; None where the live node stayed."""
    session, began = loop.session, time.perf_counter()
    loop.steps.end()
    loop.reporter.begin("Going to another step")
    how = go(loop.inbox.check_uncancelled)
    took_ms = (time.perf_counter() - began) * 1e3
    went = () if how is None else (WentTo(session.last_step, how, took_ms, session.bytes()),)
    _report_other_rows(loop, *went)


def _report_other_rows(loop: EngineLoop, *answers: Event) -> None:
    """Answer a command that has replaced the live rows; watched pictures are dropped, and the client asks again."""
    session = loop.session
    for node in session.history.take_added():
        loop.reporter.reply(NodeAdded(node, is_live=False))
    loop.watching.forget()
    for answer in answers:
        loop.reporter.reply(answer)
    loop.breakpoints.leave_halt()
    loop.comparing.restart(session)


def _report_forks(loop: EngineLoop, *made: ForkMade) -> None:
    loop.reporter.send_status()  # the status that has the new sequences comes first
    for forked in made:
        loop.reporter.reply(forked)


def _delete_branch(loop: EngineLoop, command: commands.DeleteBranch) -> None:
    loop.reporter.reply(BranchDeleted(loop.session.delete_branch(command.step)))
    loop.comparing.follow(loop.session)


def _remove_sequence(loop: EngineLoop, command: commands.RemoveSequence) -> None:
    loop.session.remove(command.seq_id)
    loop.comparing.follow(loop.session)


# ---- pictures --------------------------------------------------------------------------------------------------------


def _take_picture(loop: EngineLoop, command: commands.TakePicture) -> None:
    snapshot = loop.workspace.opened.snapshot
    if command.side is not None:
        take = loop.comparing.pictures_of(command.side)
    elif snapshot is not None:
        take = snapshot.take
    else:
        take = partial(loop.session.take_picture, node=command.node)
    loop.reporter.reply_picture(take, command.request, command.side)


def _watch(loop: EngineLoop, command: commands.Watch) -> None:
    if command.pictures:  # to watch nothing is possible everywhere
        loop.workspace.check_has("rows")
    if loop.workspace.opened.snapshot is not None:
        loop.workspace.opened.watch(command)
    elif loop.workspace.session is not None:
        loop.watching.watch(loop.session, command)


# ---- exports ---------------------------------------------------------------------------------------------------------


def _exported(loop: EngineLoop) -> Session | SnapshotFile:
    snapshot = loop.workspace.opened.snapshot
    return loop.session if snapshot is None else snapshot.file


def _export(loop: EngineLoop, command: Export) -> None:
    """Write the file and report its size and time, or that the export was cancelled, which leaves a file that was there
    before unchanged."""
    from engine.session.session import Session
    from engine.snapshot.export import export as exporting

    source, reporter, began = _exported(loop), loop.reporter, time.perf_counter()
    if command.comes_here:
        command = replace(command, path=Path(tempfile.mkdtemp(prefix="kvloupe-")) / command.path.name)
    try:
        if isinstance(source, Session):
            command = replace(command, records=with_surprisal(source, command.records, reporter))
        command = _with_norms(source, command)
        reporter.follow(f"Writing {command.path.name}", exporting(source, command), counts_bytes=True)
    except BaseException as error:
        if command.comes_here:
            with contextlib.suppress(OSError):
                command.path.parent.rmdir()
        if isinstance(error, Cancelled):
            reporter.reply(ExportCancelled(command.path))
        raise
    took_ms = (time.perf_counter() - began) * 1e3
    script = command.path.with_suffix(".py") if command.with_script and command.kind == "snapshot" else None
    reporter.reply(Exported(command.path, _size_of(command), took_ms, script))


def _with_norms(source: Session | SnapshotFile, command: Export) -> Export:
    """The command with records as the engine has them: with the statistics of all rows, of which a window gets only
    the newest of a step."""
    from engine.session.session import Session

    if not command.records:
        return command
    if isinstance(source, Session):
        return replace(command, records=tuple(map(source.history.with_norms, command.records)))
    from engine.opened.description import readable_steps

    of_file = {record.step: record for record in readable_steps(source)}
    return replace(command, records=tuple(of_file.get(record.step, record) for record in command.records))


def _size_of(command: Export) -> int:
    try:
        return command.path.stat().st_size
    except OSError:
        raise InputError(f"'{command.path}' was written and is gone: look whether its drive is still there.") from None


def _estimate(loop: EngineLoop, command: EstimateExport) -> None:
    """Report what an export would take."""
    from engine.snapshot.export import estimate

    source = _exported(loop)
    loop.reporter.reply(estimate(source, _with_norms(source, command.export)))


# ---- what is on this computer ----------------------------------------------------------------------------------------

MOST_LISTED = 5_000  # names of a folder


def _find_models(loop: EngineLoop, _command: commands.FindModels) -> None:
    from engine.model.hub import models_here

    loop.reporter.reply(ModelsFound(models_here()))


def _find_devices(loop: EngineLoop, _command: devices.FindDevices) -> None:
    from engine.model.device import devices_here, formats_here, why_no_split

    loop.reporter.reply(devices.DevicesFound(devices_here(), formats_here(), why_no_split()))


def _forecast_load(loop: EngineLoop, command: devices.ForecastLoad) -> None:
    """Answer with the memory that a model and its cache would take in place of the loaded one."""
    from engine.model.forecast import forecast

    held = loop.workspace.held
    loop.reporter.reply(forecast(command, 0 if held is None else held.num_bytes))


def _list_folder(loop: EngineLoop, command: commands.ListFolder) -> None:
    """Answer with the first `MOST_LISTED` names of a folder, sorted; raises `InputError` if it cannot be read."""
    path = command.path
    try:
        folder = Path(path).expanduser().absolute() if path else Path.home()
        with os.scandir(folder) as entries:
            found = [
                (each.name, each.is_dir()) for each in islice(entries, MOST_LISTED) if not each.name.startswith(".")
            ]
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"The folder '{path[:500]}' cannot be listed ({reason}): give another one.") from None
    names = [tuple(sorted(name for name, is_folder in found if is_folder is wanted)) for wanted in (True, False)]
    loop.reporter.reply(FolderListed(str(folder), *names))


# ---- the table -------------------------------------------------------------------------------------------------------

# Commands that only one part handles are given to it here.
HANDLERS: dict[type[Command], Callable[[EngineLoop, Any], object]] = {
    commands.LoadModel: lambda loop, command: loop.workspace.load(command),
    commands.SetCache: _set_cache,
    commands.ChooseRunner: lambda loop, command: loop.session.model.runners.choose(command.runner),
    commands.ChoosePagedAttention: lambda loop, command: loop.session.model.runners.pages.choose(command.way),
    commands.SetCapture: lambda loop, command: loop.workspace.set_capture(command),
    commands.SubmitPrompt: _submit,
    commands.PreviewPrompt: lambda loop, command: loop.reporter.reply(loop.session.preview(command)),
    commands.SetSampling: _set_sampling,
    commands.SetKeptLimit: lambda loop, command: loop.workspace.set_kept_limit(command.num_bytes),
    commands.Step: _step,
    commands.Run: _run,
    commands.NextPhase: lambda loop, command: loop.take_phase(loop.session, command.id),
    commands.Pause: lambda loop, _: loop.steps.pause(),
    commands.Redo: _redo,
    commands.Cancel: _cancel,
    commands.Force: lambda loop, command: loop.session.force(command.seq_id, command.token_ids),
    commands.ForceText: lambda loop, command: loop.session.force_text(command.seq_id, command.text),
    commands.GoTo: lambda loop, command: _go(loop, partial(loop.session.go_to, command.step)),
    commands.BeginBranch: lambda loop, command: _go(loop, partial(loop.session.branch, command)),
    commands.DeleteBranch: _delete_branch,
    commands.MakeEdit: _make_edit,
    commands.UndoEdit: lambda loop, _: _go(loop, loop.session.undo_edit),
    commands.RedoEdit: lambda loop, _: _go(loop, loop.session.redo_edit),
    commands.Fork: lambda loop, command: _report_forks(loop, loop.session.fork(command.seq_id, command.step)),
    commands.JoinBranches: lambda loop, command: _report_forks(loop, *loop.session.join(command.steps)),
    commands.StopSequence: lambda loop, command: loop.session.stop(command.seq_id),
    commands.RemoveSequence: _remove_sequence,
    commands.TakePicture: _take_picture,
    commands.Watch: _watch,
    commands.SetPace: _set_pace,
    commands.Tokenize: _tokenize,
    serving.AttachServer: _servers,
    serving.DetachServer: _servers,
    serving.RecordServer: _servers,
    serving.TakePrefixTree: _prefixes,
    serving.ExplainPrefix: _prefixes,
    commands.OpenSnapshot: lambda loop, command: loop.workspace.open(command),
    commands.Continue: lambda loop, command: loop.workspace.leave_file(command),
    commands.CloseSnapshot: lambda loop, command: loop.workspace.leave_file(command),
    commands.StartComparison: lambda loop, command: loop.comparing.start(loop.source, command, loop.workspace.model),
    commands.EndComparison: lambda loop, _: loop.comparing.end(),
    commands.FindModels: _find_models,
    commands.ListFolder: _list_folder,
    devices.FindDevices: _find_devices,
    devices.ForecastLoad: _forecast_load,
    devices.UnloadModel: lambda loop, _: loop.workspace.unload(),
    Export: _export,
    EstimateExport: _estimate,
    measurements.WhatIf: lambda loop, command: loop.measuring.what_if(loop.session, command),
    measurements.CheckParity: lambda loop, command: loop.measuring.check_parity(loop.session, command),
    measurements.MapDamage: lambda loop, command: loop.measuring.map_damage(loop.session, command),
    measurements.MeasureRegret: lambda loop, command: loop.measuring.measure_regret(loop.session, command),
    measurements.Sweep: lambda loop, command: loop.measuring.sweep(loop.session, command),
    measurements.Bench: lambda loop, command: loop.measuring.bench(loop.session, command),
    breakpoints.SetBreakpoints: lambda loop, command: loop.breakpoints.set(command),
    breakpoints.MeasureAttention: lambda loop, command: loop.breakpoints.measure(loop.session, command),
}
