"""Sequences of other branches beside those of the live moment, so that they decode as one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import InputError
from engine.wire.changes import SequenceForked
from engine.wire.events import Forked

if TYPE_CHECKING:
    from engine.session.session import Session


def join(session: Session, steps: tuple[int, ...]) -> tuple[Forked, ...]:
    """Fork the sequences of these moments into the live one, those that it does not have as they stand there. All of
    them, or an `InputError` and none."""
    asked = [(seq_id, step) for step in dict.fromkeys(steps) for seq_id in missing(session, step)]
    if not asked:
        where = " and ".join(f"step {step}" for step in steps) or "no step"
        raise InputError(f"The live moment has every sequence of {where} as it stands there: choose another branch.")
    made: list[Forked] = []
    try:
        for seq_id, step in asked:
            made.append(session.fork(seq_id, step))
    except BaseException:
        for forked in made:
            session.remove(forked.child)
        raise
    return tuple(made)


def missing(session: Session, step: int) -> list[int]:
    """The sequences of a moment that the live one does not have: others, or the same ones fed otherwise since."""
    history = session.history
    tree, live = history.tree, history.last_step
    there = tree.at(step).checkpoint.marks
    taken = {
        (c.parent, c.step) for c in history.changes if isinstance(c, SequenceForked) and c.seq_id in session.live.ids
    }
    return [
        seq_id
        for seq_id in there
        if (seq_id, step) not in taken and not (seq_id in session.live.ids and is_as_fed(session, seq_id, step, live))
    ]


def is_as_fed(session: Session, seq_id: int, step: int, live: int | None) -> bool:
    """Whether the same step fed a sequence last at both moments."""
    tree = session.history.tree
    return live is not None and tree.fed_at(seq_id, step) == tree.fed_at(seq_id, live)
