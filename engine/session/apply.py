"""What a command does to a session, and what is answered to it."""

from __future__ import annotations

import time
from collections.abc import Callable

from engine.session.branching import branch, delete_branch, redo_edit, undo_edit
from engine.session.continuing import preview
from engine.session.editing import make_edit
from engine.session.session import Session
from engine.spec.sampling import Prompt
from engine.wire.commands import (
    Branch,
    DeleteBranch,
    Force,
    ForceText,
    Fork,
    GoTo,
    MakeEdit,
    PreviewPrompt,
    RedoEdit,
    RemoveSequence,
    SetCache,
    StopSequence,
    TakeSlice,
    Tokenize,
    UndoEdit,
)
from engine.wire.edits import EditMeasured
from engine.wire.events import BranchDeleted, CacheChanged, Forked, NodeAdded, Previewed, Tokenized, WentTo
from engine.wire.slices import Slice

Going = GoTo | Branch | UndoEdit | RedoEdit
SessionCommand = (
    Force
    | ForceText
    | StopSequence
    | RemoveSequence
    | SetCache
    | Going
    | DeleteBranch
    | Fork
    | TakeSlice
    | Tokenize
    | PreviewPrompt
)
Answer = CacheChanged | WentTo | BranchDeleted | Forked | Slice | Tokenized | Previewed


def apply(session: Session, command: SessionCommand, check: Callable[[], None] | None = None) -> Answer | None:
    """Do it, and give the answer where there is one. Raises and changes nothing where it cannot be done;
    so does `check`, which is called in what takes long."""
    began = time.perf_counter()
    match command:
        case Force(seq_id, token_ids):
            session.force(seq_id, token_ids)
        case ForceText(seq_id, text):
            session.force_text(seq_id, text)
        case StopSequence(seq_id):
            session.halt(seq_id)
        case RemoveSequence(seq_id):
            session.remove(seq_id)
        case SetCache(spec):
            how = session.set_cache(spec)
            return CacheChanged(spec, how, _ms_since(began), session.bytes())
        case GoTo() | Branch() | UndoEdit() | RedoEdit():
            went = go(session, command, check)
            return None if went is None else WentTo(session.last_step, went, _ms_since(began))
        case DeleteBranch(step):
            return BranchDeleted(delete_branch(session, step))
        case Fork(seq_id, at_step):
            return session.fork(seq_id, at_step)
        case TakeSlice(request, node=node):
            return session.take_slice(request, node)
        case Tokenize(text):
            ids = session.encode(Prompt(text=text)) if text else []
            return Tokenized(tuple(ids), tuple(map(session.text_of, ids)))
        case PreviewPrompt():
            return preview(session, command)
    return None


def edit(
    session: Session, command: MakeEdit, check: Callable[[], None] | None = None
) -> tuple[NodeAdded, EditMeasured]:
    """Make an edit by hand; the node that it is, and what it did."""
    return make_edit(session, command.edit, check)


def go(session: Session, command: Going, check: Callable[[], None] | None) -> str | None:
    """Go to another moment; says how, None where the live one stayed."""
    match command:
        case GoTo(step):
            return session.go_to(step, check)
        case Branch():
            return branch(session, command, check)
        case UndoEdit():
            return undo_edit(session, check)
        case RedoEdit():
            return redo_edit(session, check)


def _ms_since(began: float) -> float:
    return (time.perf_counter() - began) * 1e3
