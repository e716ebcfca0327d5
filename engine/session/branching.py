"""Commands on branches: begin one at any step, delete one, undo and redo edits, run several as one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.errors import InputError
from engine.history.state import SequenceState
from engine.history.tree import referred_to
from engine.predict.capacity import cache_capacity, is_endless
from engine.session.atomic import atomic
from engine.session.prompt import encode, encode_forced
from engine.session.sampler import check_stop_strings
from engine.spec.sampling import Prompt
from engine.wire.changes import EditMade, SequenceForked
from engine.wire.commands import BeginBranch
from engine.wire.events import ForkMade

if TYPE_CHECKING:
    from engine.session.session import Session


Check = Callable[[], None] | None


def branch(session: Session, command: BeginBranch, check: Check = None) -> str | None:
    """Go to a step and begin another branch of a sequence there. Returns in words how the rows came, or None if the
    branch begins at the live state. Raises and changes nothing on failure."""
    ids = tuple(encode(session.model, Prompt(token_ids=command.token_ids))) if command.token_ids else ()
    if command.text:
        ids = encode_forced(session.model, command.text)
    if not ids and command.sampling is None:
        raise InputError("A branch begins with another token, a text or another sampling: give one of them.")
    check_stop_strings(session.model, command.sampling)
    if command.step is None:
        begin_branch(session, command, ids)
        return None
    mark = session.history.tree.at(command.step).checkpoint.marks.get(command.seq_id)
    if mark is None:
        raise InputError(f"Sequence {command.seq_id} was not there at step {command.step}: choose another step.")
    check_room(session, command, mark, ids)
    return session.go_to(command.step, check, lambda: begin_branch(session, command, ids))


@atomic
def begin_branch(session: Session, command: BeginBranch, ids: tuple[int, ...]) -> None:
    """Give a live sequence another sampling, other next tokens, or both."""
    if command.sampling is not None:
        session.set_sampling(command.sampling, command.seq_id)
    if ids:
        session.force(command.seq_id, ids)


def check_room(session: Session, command: BeginBranch, mark: SequenceState, ids: tuple[int, ...]) -> None:
    """Raise `InputError` before going to a step at which the sequence has no room for another token."""
    assert command.step is not None
    info, longest = session.model.info, session.model.max_length
    spec = session.history.tree.at(command.step).checkpoint.cache
    capacity = cache_capacity(spec, longest, info.geometry)
    is_full = mark.num_tokens >= longest and not is_endless(spec, info)
    is_full |= capacity is not None and mark.num_tokens >= capacity
    if ids and not mark.is_prefilling and is_full:
        raise InputError(f"Sequence {command.seq_id} has no room for another token there: choose an earlier step.")


def delete_branch(session: Session, step: int) -> tuple[int, ...]:
    """Delete a step and all its descendants; returns the deleted steps. Raises `InputError` where the live state is
    among them, or another branch refers to one of them (a fork, or an edit that took rows)."""
    history = session.history
    history.tree.at(step)
    steps = set(history.tree.below(step))
    if history.last_step in steps:
        raise InputError(f"The live step came of step {step}: go to another branch first, then delete this one.")
    asking = [(m.node.step, m.node.changes) for m in history.tree if m.node.step not in steps]
    for other, changes in [*asking, (history.next_step, tuple(history.changes))]:
        if taken := steps.intersection(referred_to(changes)):
            raise InputError(f"Step {other} of another branch has taken something from step {min(taken)}: keep it.")
    forgotten = history.forget_branch(step)
    session.kept.drop_missing(history.tree)
    return forgotten


def undo_edit(session: Session, check: Check = None) -> str:
    """Go to the state before the newest edit on the live path; returns in words how the rows came."""
    history = session.history
    edited = (s for s in reversed(history.journal.steps) if is_edit(session, s))
    edit = next(edited, None)
    if edit is None:
        raise InputError("There is no edit to undo on the way to this step.")
    back_to = history.last_step if not history.changes else history.next_step
    assert back_to is not None
    undone = history.tree.parent(edit), back_to
    how = session.go_to(undone[0], check)
    history.undone.append(undone)
    return how


def redo_edit(session: Session, check: Check = None) -> str:
    """Go to where the last undo came from; if that is not known, to the newest edit made at the live node. Returns in
    words how the rows came."""
    history = session.history
    is_known = bool(history.undone) and history.undone[-1][0] == history.last_step
    edits = [step for step in history.tree.children_of(history.last_step) if is_edit(session, step)]
    if history.changes or not (is_known or edits):
        raise InputError("There is no undone edit to return to: something was done since, or nothing was undone.")
    how = session.go_to(history.undone[-1][1] if is_known else edits[-1], check)
    if is_known:
        history.undone.pop()
    return how


def is_edit(session: Session, step: int) -> bool:
    """Whether the node of a step is an edit by hand."""
    return any(isinstance(change, EditMade) for change in session.history.tree.at(step).node.changes)


@atomic
def join(session: Session, steps: tuple[int, ...]) -> tuple[ForkMade, ...]:
    """Fork the sequences of these steps into the live state, those that it does not have already. All of them, or an
    `InputError` and none."""
    asked = [(seq_id, step) for step in dict.fromkeys(steps) for seq_id in missing(session, step)]
    if not asked:
        where = " and ".join(f"step {step}" for step in steps) or "no step"
        raise InputError(f"The live step has every sequence of {where} as it stands there: choose another branch.")
    return tuple(session.fork(seq_id, step) for seq_id, step in asked)


def missing(session: Session, step: int) -> list[int]:
    """The sequences of a step that the live state lacks: other ids, or the same ids with other tokens fed since."""
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
    """Whether the sequence was last fed by the same step at `step` and at `live`."""
    tree = session.history.tree
    return live is not None and tree.fed_at(seq_id, step) == tree.fed_at(seq_id, live)
