"""A session compared with the same tokens in another cache."""

from __future__ import annotations

from engine.analysis.duel.duel import Duel, DuelFollower
from engine.analysis.duel.sides import LiveRun
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.presets import cache_named
from engine.spec.tuning import tuned
from engine.wire.duel import DuelStep

KIVI = tuned(cache_named("kivi-2"), group=16, residual=16)


def duel_of(session: Session, seq_id: int, against: CacheSpec) -> Duel:
    sequence = session.sequence(seq_id)
    prompt = sequence.token_ids[: sequence.num_prompt_tokens]
    follower = DuelFollower(session.model, against, prompt)
    return Duel(LiveRun(session, seq_id, "A"), follower.run, session.text_of, follower)


def compared(duel: Duel) -> list[DuelStep]:
    return [step for step in duel.catch_up() if isinstance(step, DuelStep)]
