"""A command on a session is done as a whole, or has changed nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from engine.history.history import History
from engine.session.live import LiveSequences

if TYPE_CHECKING:
    from engine.session.session import Session

P = ParamSpec("P")
T = TypeVar("T")


class Before:
    """The sequences of a session, what is known of them, and what was done since the newest step; rows apart, which a
    command writes into caches of its own."""

    def __init__(self, live: LiveSequences, history: History) -> None:
        self._live, self._history = live, history
        self._mode, self._next_id = live.mode, live.next_id
        self._sequences = {each.seq_id: each for each in live}
        self._states = [replace(each) for each in live]
        self._marks = [each.sequence.mark() for each in live]
        self._num_changes, self._noted = len(history.changes), history.journal.num_noted()
        self._surprisal = history.surprisal.sharers()
        store = live.mode.store
        self._tables = [(group, {*group.tables}) for group in (store.groups if store is not None else ())]

    def restore(self) -> None:
        """Pages that were taken since are given back; a sequence that was removed is there again."""
        self._live.undo_replace(self._mode, self._sequences, self._next_id)
        for each, state, mark in zip(self._sequences.values(), self._states, self._marks, strict=True):
            each.cache, each.is_stale = state.cache, state.is_stale
            each.set_logits(state.logits, state.logprobs)
            each.sequence.go_back(mark)
        del self._history.changes[self._num_changes :]
        self._history.journal.forget_notes_after(self._noted)
        self._history.surprisal.share_again(self._surprisal)
        self.free_tables()

    def free_tables(self) -> None:
        """Of caches that somebody began to make and gave up."""
        for group, tables in self._tables:
            for table in [table for table in group.tables if table not in tables]:
                group.pool.release(table)
                group.tables.remove(table)


def whole(command: Callable[Concatenate[Session, P], T]) -> Callable[Concatenate[Session, P], T]:
    """A method that changes nothing where it raises."""

    @wraps(command)
    def done(session: Session, *args: P.args, **kwargs: P.kwargs) -> T:
        session.forget_ahead()
        before = Before(session.live, session.history)
        try:
            return command(session, *args, **kwargs)
        except BaseException:
            before.restore()
            raise

    return done  # type: ignore[return-value]
