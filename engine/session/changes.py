"""Repeats recorded changes (a prompt, a fork, an edit …) on a session, with the same sequence ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import InputError
from engine.session.continuing import append_prompt
from engine.session.editing import repeat_edit
from engine.spec.sampling import Prompt
from engine.wire.changes import (
    Change,
    EditMade,
    ModeChanged,
    PromptAppended,
    SamplingChanged,
    SequenceAdded,
    SequenceForked,
    SequenceRemoved,
    SequenceStopped,
    TokensForced,
)
from engine.wire.edits import EditMeasured

if TYPE_CHECKING:
    from engine.session.session import Session


def repeat_change(session: Session, change: Change) -> EditMeasured | None:
    """Repeat a recorded change, or raise `InputError`. Returns what it did to the next token if it is an edit."""
    match change:
        case SequenceAdded(seq_id, token_ids, sampling, chat):
            set_next_id(session, seq_id)
            session.submit(Prompt(token_ids=token_ids, sampling=sampling, has_start=True), chat)
        case SequenceForked(seq_id, parent, step, num_tokens):
            set_next_id(session, seq_id)
            session.fork(parent, step, num_tokens)
        case PromptAppended(seq_id, token_ids, sampling, chat):
            append_prompt(session, seq_id, token_ids, sampling, chat)
        case SequenceRemoved(seq_id):
            session.remove(seq_id)
        case SequenceStopped(seq_id):
            session.halt(seq_id)
        case TokensForced(seq_id, token_ids):
            session.force(seq_id, token_ids)
        case SamplingChanged(seq_id, sampling):
            session.set_sampling(sampling, seq_id)
        case ModeChanged(cache):
            session.set_cache(cache)
        case EditMade(edit):
            return repeat_edit(session, edit)
    return None


def set_next_id(session: Session, seq_id: int) -> None:
    """Have the next sequence get this `seq_id`; `InputError` where it is taken."""
    if seq_id in session.live.ids:
        raise InputError(f"There is a sequence {seq_id} already.")
    session.live.next_id = seq_id
