"""Rebuilds a session after its engine was lost: repeats its steps, as far as that is possible, and reports how far."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from engine.errors import Cancelled, InputError
from engine.loop.failures import plain
from engine.loop.inbox import Inbox
from engine.loop.reporter import Reporter
from engine.wire.commands import Redo
from engine.wire.events import BranchDeleted, Redone, StepRedone

if TYPE_CHECKING:
    from engine.session.redoing import Redoing
    from engine.session.session import Session

log = logging.getLogger(__name__)


def redo(session: Session, command: Redo, reporter: Reporter, inbox: Inbox) -> None:
    """Repeat the nodes of a `Redo` command; report of each step its page events, and at the end how far it came and
    what stood in the way."""
    from engine.session.redoing import Redoing, check_can_be_redone

    began, why = time.perf_counter(), ""
    check_can_be_redone(session, command.nodes, command.at)
    redoing = Redoing(session, command.nodes)
    try:
        reporter.follow("Doing the steps once more", _pieces(redoing, len(command.nodes), reporter, inbox))
    except Cancelled:
        why = "it was cancelled"
    except InputError as error:
        why = str(error)
    except Exception as error:
        log.error("doing a step once more failed", exc_info=error)
        why = plain(error)
    try:
        redoing.finish(command.at, command.changes)
    except InputError as error:
        why = why or str(error)
    session.history.take_added()
    reporter.send_status()
    num_steps = len(session.history.tree)
    took_ms = (time.perf_counter() - began) * 1e3
    exact = redoing.why_not_exact if not redoing.num_computed_anew else ""
    reporter.reply(Redone(session.last_step, num_steps, took_ms, why, redoing.num_computed_anew, exact))
    if missing := tuple(node.step for node in command.nodes if node.step not in session.history.tree):
        reporter.reply(BranchDeleted(missing))  # nodes that were not repeated cannot be returned to


def _pieces(redoing: Redoing, total: int, reporter: Reporter, inbox: Inbox) -> Iterator[tuple[int, int]]:
    yield 0, total
    for done, (node, record) in enumerate(redoing.steps(inbox.check_uncancelled), 1):
        if record is not None and record.pools:
            reporter.reply(StepRedone(node.step, record.page_events, record.pools))
        yield done, total
