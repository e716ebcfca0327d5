"""What a command does to a session, and what is answered to it."""

from __future__ import annotations

import time

from engine.session.session import Session
from engine.spec.sampling import Prompt
from engine.wire.commands import (
    Force,
    ForceText,
    Fork,
    GoTo,
    RemoveSequence,
    SetCache,
    StopSequence,
    TakeSlice,
    Tokenize,
)
from engine.wire.events import CacheChanged, Forked, Tokenized, WentTo
from engine.wire.slices import Slice

SessionCommand = Force | ForceText | StopSequence | RemoveSequence | SetCache | GoTo | Fork | TakeSlice | Tokenize


def apply(session: Session, command: SessionCommand) -> CacheChanged | WentTo | Forked | Slice | Tokenized | None:
    """Do it, and give the answer where there is one. Raises and changes nothing where it cannot be done."""
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
        case GoTo(step):
            how = session.go_to(step)
            return WentTo(step, how, _ms_since(began))
        case Fork(seq_id, at_step):
            return session.fork(seq_id, at_step)
        case TakeSlice(request):
            return session.take_slice(request)
        case Tokenize(text):
            ids = session.encode(Prompt(text=text)) if text else []
            return Tokenized(tuple(ids), tuple(map(session.text_of, ids)))
    return None


def _ms_since(began: float) -> float:
    return (time.perf_counter() - began) * 1e3
