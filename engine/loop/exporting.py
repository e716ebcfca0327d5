"""Exports to files, with progress. A cancelled export leaves a file that was there before unchanged."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.errors import Cancelled, InputError
from engine.loop.prompt_surprisal import with_surprisal
from engine.loop.reporter import Reporter
from engine.wire.exporting import EstimateExport, Export, ExportCancelled, Exported

if TYPE_CHECKING:
    from engine.session.session import Session
    from engine.snapshot.read import SnapshotFile

    Source = Session | SnapshotFile


def export(source: Source, command: Export, reporter: Reporter) -> None:
    """Write the file and report its size and time, or that the export was cancelled."""
    from engine.session.session import Session
    from engine.snapshot.export import export as exporting

    began = time.perf_counter()
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


def _with_norms(source: Source, command: Export) -> Export:
    """The command with records as the engine has them: with the statistics of all rows, of which a window is told only
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


def estimate(source: Source, command: EstimateExport, reporter: Reporter) -> None:
    """Report what an export would take."""
    from engine.snapshot.export import estimate as estimated

    reporter.reply(estimated(source, _with_norms(source, command.export)))
