"""Replays the steps of a session that was lost with its engine, or saved in a file, and reports how far that went."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.counted import counted, step_numbers
from engine.errors import Cancelled, InputError
from engine.loop.inbox import Inbox
from engine.loop.reporter import Reporter, in_a_sentence
from engine.wire.commands import Redo
from engine.wire.events import BranchDeleted, Failed, Redone, Restarted, StepRedone, WentTo
from engine.wire.records import EditMade, StepRecord

if TYPE_CHECKING:
    from engine.model.loader import LoadedModel
    from engine.opened.session import OpenedSession
    from engine.session.replay import Replay
    from engine.session.session import Session
    from engine.wire.tree import Node

log = logging.getLogger(__name__)


def follow(
    replay: Replay, label: str, reporter: Reporter, inbox: Inbox, done: Callable[[Node, StepRecord], None]
) -> None:
    """Replay all nodes with progress; `done` is called after every step. A cancel raises `Cancelled`."""

    def pieces() -> Iterator[tuple[int, int]]:
        yield 0, len(replay.nodes)
        for node, record, _ in replay.steps(inbox.check_uncancelled):
            if record is not None:
                done(node, record)
            yield replay.num_done, len(replay.nodes)

    reporter.follow(label, pieces())


def redo(session: Session, command: Redo, reporter: Reporter, inbox: Inbox) -> None:
    """Replay the nodes of a `Redo` command; report of each step its page events, and at the end how far it came and
    what stood in the way."""
    from engine.session.replay import Replay, check_can_be_replayed

    began, why = time.perf_counter(), ""
    check_can_be_replayed(session, command.nodes, command.at)
    replay = Replay(session, command.nodes)

    def report(node: Node, record: StepRecord) -> None:
        if record.pools:
            reporter.reply(StepRedone(node.step, record.page_events, record.pools))

    try:
        follow(replay, "Doing the steps once more", reporter, inbox, report)
    except Cancelled:
        why = "it was cancelled"
    except InputError as error:
        why = str(error)
    except Exception as error:
        log.error("doing a step once more failed", exc_info=error)
        why = in_a_sentence(error)
    try:
        replay.finish(command.at, command.changes)
    except InputError as error:
        why = why or str(error)
    reporter.send_status()
    num_steps, took_ms = len(session.history.tree), (time.perf_counter() - began) * 1e3
    exact = "" if replay.num_computed_anew else replay.why_not_exact
    reporter.reply(Redone(session.last_step, num_steps, took_ms, why, replay.num_computed_anew, exact))
    if missing := tuple(node.step for node in command.nodes if node.step not in session.history.tree):
        reporter.reply(BranchDeleted(missing))  # nodes that were not repeated cannot be returned to


def rebuilt(
    model: LoadedModel, file: OpenedSession, reporter: Reporter, inbox: Inbox, *, may_open_files: bool
) -> tuple[Session, Callable[[], None]]:
    """Replay the opened session with progress; the session, and what reports all of it. A cancel raises `Cancelled`,
    and the file stays open; so it does where `InputError` is raised. A node that cannot be repeated ends the replay at
    the one before. `may_open_files`: recorded edits may read the files that they name, since the user wrote the
    session."""
    from engine.opened.session import history_events, session_opened_event
    from engine.session.replay import Replay, refuse_rows
    from engine.session.session import Session
    from engine.snapshot.resume import rows_of_file

    if why_not := file.why_not(model.info):
        raise InputError(f"'{file.path}' cannot be gone on from: {why_not}.")
    began, why, saved = time.perf_counter(), "", file.saved
    session = Session(model, saved.first_cache)
    session.open_rows = rows_of_file if may_open_files else refuse_rows
    replay, records = Replay(session, saved.nodes), dict[int, StepRecord]()
    try:
        follow(
            replay,
            "Doing the session once more",
            reporter,
            inbox,
            lambda node, record: records.update({node.step: record}),
        )
    except InputError as error:
        if not replay.num_done:
            raise
        why = str(error)
    try:
        replay.finish(saved.live, saved.pending)
    except InputError as error:
        why = why or f"What was done last could not be done once more: {error}"
    session.open_rows = rows_of_file  # later edits come from the user, who may name files
    took_ms, count, warning = (time.perf_counter() - began) * 1e3, replay.num_done, why or _difference_words(replay)
    done = replace(saved, nodes=saved.nodes[:count], live=session.last_step)
    as_it_was = "" if warning else " as it was"
    how = f"restored{as_it_was}{_done_words(done.nodes)}"
    answer = WentTo(session.last_step, how, took_ms, session.bytes())

    def report() -> None:
        reporter.reply(Restarted())
        reporter.send_status()
        for event in history_events(done, records, replay.measured):
            reporter.emit(event)
        reporter.reply(answer)
        reporter.send_status()
        reporter.reply(session_opened_event(done))  # last, since what the window showed is a place in all of this
        if warning:
            reporter.reply(Failed(warning))

    return session, report


def _done_words(nodes: tuple[Node, ...]) -> str:
    """`, steps 0–20 with 2 edits done once more`: an edit is a step too, as where the session was offered."""
    if not nodes:
        return ""
    num_edits = sum(isinstance(change, EditMade) for node in nodes for change in node.changes)
    edits = f" with {counted(num_edits, 'edit')}" if num_edits else ""
    numbers = [node.step for node in nodes]
    return f", {step_numbers(min(numbers), max(numbers))}{edits} done once more"


def _difference_words(replay: Replay) -> str:
    found = replay.differences
    if not found:
        return ""
    more = f", and {len(found) - 1:,} more" if len(found) > 1 else ""
    return (
        f"The session was rebuilt, and not all of it is as it was: {found[0].describe()}{more}. Its tokens are those "
        "that were written; another machine, or another number of threads, rounds otherwise."
    )
