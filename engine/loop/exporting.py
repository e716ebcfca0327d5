"""The cache of a sequence is written to a file; a cancel leaves nothing of it behind."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from engine.loop.reporter import Reporter
from engine.wire.commands import Export
from engine.wire.events import Exported

if TYPE_CHECKING:
    from engine.session.session import Session


def export(session: Session, command: Export, reporter: Reporter) -> None:
    from engine.snapshot.gather import snapshot_of
    from engine.snapshot.write import write_snapshot

    began = time.perf_counter()
    snapshot = snapshot_of(session, command)
    pieces = ((done, snapshot.num_bytes) for done in write_snapshot(snapshot, command.path))
    reporter.follow(f"Writing {command.path.name}", pieces)
    took_ms = (time.perf_counter() - began) * 1e3
    reporter.reply(Exported(command.path, command.path.stat().st_size, took_ms))
