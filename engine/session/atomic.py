"""Makes commands on a session atomic: a command that raises has changed nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from engine.history.history import History
from engine.session.kept import KeptStates
from engine.session.live import LiveSequences

if TYPE_CHECKING:
    from engine.session.session import Session

P = ParamSpec("P")
T = TypeVar("T")


class StateBefore:
    """The state of a session before a command, to be restored if the command fails: sequences, their bookkeeping,
    changes and notes since the newest step, kept states, and page tables. Rows are not copied: a command writes only
    into new caches."""

    def __init__(self, live: LiveSequences, history: History, kept: KeptStates) -> None:
        self._live, self._history, self._kept, self._kept_before = live, history, kept, kept.all
        self._mode, self._next_id = live.mode, live.next_id
        self._sequences = {each.seq_id: each for each in live}
        self._states = [replace(each) for each in live]
        self._before, self._surprisal = history.state(), history.surprisal.owners()
        store = live.mode.store
        self._tables = [(group, {*group.tables}) for group in (store.groups if store is not None else ())]

    def restore(self) -> None:
        """Undo what was done since this was made: pages taken since are freed, removed sequences are live again."""
        self._kept.restore(self._kept_before)
        self._live.undo_replace(self._mode, self._sequences, self._next_id)
        for each, state in zip(self._sequences.values(), self._states, strict=True):
            each.sequence, each.cache, each.is_stale = state.sequence, state.cache, state.is_stale
            each.set_logits(state.logits, state.logprobs)
        self._history.restore(self._before)
        self._history.surprisal.restore_owners(self._surprisal)
        self.free_tables()

    def free_tables(self) -> None:
        """Free the page tables created since, of caches that the failed command began to fill."""
        for group, tables in self._tables:
            for table in [table for table in group.tables if table not in tables]:
                group.pool.release(table)
                group.tables.remove(table)


def atomic(command: Callable[Concatenate[Session, P], T]) -> Callable[Concatenate[Session, P], T]:
    """Decorator: where the command raises, the session is restored to what it was. A forward launched ahead is
    discarded before the command in any case, and rows that a failed step lost are there again: a command that failed
    could not give them back."""

    @wraps(command)
    def done(session: Session, *args: P.args, **kwargs: P.kwargs) -> T:
        session.stepper.discard_ahead()
        session.restorer.fill_emptied()
        before = StateBefore(session.live, session.history, session.kept)
        try:
            return command(session, *args, **kwargs)
        except BaseException:
            before.restore()
            raise

    return done  # type: ignore[return-value]
