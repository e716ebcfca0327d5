"""Continues an opened session: its model repeats every node, and differences from the recorded session are reported."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from engine.errors import InputError
from engine.loop.reporter import Reporter
from engine.wire.events import Event, WentTo

if TYPE_CHECKING:
    from engine.loop.inbox import Inbox
    from engine.model.loader import LoadedModel
    from engine.opened.session import OpenedSession
    from engine.session.rebuilding import Rebuilding
    from engine.session.session import Session


class Rebuilt:
    """A session that was replayed from a file: the session, the `events` that report its nodes, `said` (what the user
    wrote), the answer to the command, and a `warning`, empty if everything is as it was."""

    def __init__(self, rebuilding: Rebuilding, took_ms: float, why_not_all: str) -> None:
        from engine.opened.session import history_events, session_opened_event

        done = rebuilding.as_far_as_it_went()
        self.session: Session = rebuilding.session
        self.events: Iterator[Event] = history_events(done, rebuilding.records, rebuilding.measured)
        self.said = session_opened_event(done)
        self.warning = why_not_all or _difference_words(rebuilding)
        count = rebuilding.num_done
        as_it_was = "" if self.warning else " as it was"
        how = f"restored{as_it_was}, {count:,} moment{'' if count == 1 else 's'} done once more"
        self.answer = WentTo(self.session.last_step, how, took_ms)


def rebuilt(
    model: LoadedModel, file: OpenedSession, reporter: Reporter, inbox: Inbox, *, may_open_files: bool
) -> Rebuilt:
    """Replay the opened session with progress. A cancel raises `Cancelled`, and the file stays open. A node that cannot
    be repeated ends the replay at the one before. `may_open_files`: recorded edits may read the files that they name,
    since the user wrote the session."""
    from engine.session.rebuilding import Rebuilding
    from engine.snapshot.patching import rows_of_file

    began, why = time.perf_counter(), ""
    rebuilding = Rebuilding(model, file.saved, rows_of_file if may_open_files else None)
    total = len(file.saved.nodes)

    def pieces() -> Iterator[tuple[int, int]]:
        yield 0, total
        for _ in rebuilding.steps(inbox.check_uncancelled):
            yield rebuilding.num_done, total

    try:
        reporter.follow("Doing the session once more", pieces())
    except InputError as error:
        if not rebuilding.num_done:
            raise
        why = str(error)
    try:
        rebuilding.finish()
    except InputError as error:
        why = why or f"What was done last could not be done once more: {error}"
    rebuilding.session.open_rows = rows_of_file  # later edits come from the user, who may name files
    return Rebuilt(rebuilding, (time.perf_counter() - began) * 1e3, why)


def _difference_words(rebuilding: Rebuilding) -> str:
    found = rebuilding.differences
    if not found:
        return ""
    more = f", and {len(found) - 1:,} more" if len(found) > 1 else ""
    return (
        f"The session was rebuilt, and not all of it is as it was: {found[0].describe()}{more}. Its tokens are those "
        "that were written; another machine, or another number of threads, rounds otherwise."
    )
