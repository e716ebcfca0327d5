"""Snapshots of tiny sessions, written to a file."""

from __future__ import annotations

from engine.session.session import Session
from engine.spec.presets import PRESETS
from engine.spec.sampling import Prompt
from tests.engine.tiny import model_of, prompt_ids


def session_of(architecture: str = "llama", cache: str = "growing", length: int = 9) -> tuple[Session, int]:
    session = Session(model_of(architecture), PRESETS[cache].spec, prefill_chunk=5)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(length)))
    session.force(seq_id, prompt_ids(12, seed=1))
    while session.sequence(seq_id).num_tokens < length + 3:
        session.step()
    return session, seq_id
