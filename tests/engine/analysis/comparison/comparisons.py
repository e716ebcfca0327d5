"""A session compared with the same tokens in another cache."""

from __future__ import annotations

from engine.analysis.comparison import Comparison, ComparisonFollower, LiveRun
from engine.session.session import Session
from engine.spec.cache import CacheSpec, cache_named, tuned
from engine.wire.comparison import ComparedStep

KIVI = tuned(cache_named("kivi-2"), group=16, residual=16)


def comparison_of(session: Session, seq_id: int, against: CacheSpec) -> Comparison:
    sequence = session.sequence(seq_id)
    prompt = sequence.token_ids[: sequence.num_prompt_tokens]
    follower = ComparisonFollower(session.model, against, prompt)
    return Comparison(LiveRun(session, seq_id, "A"), follower.run, session.text_of, follower)


def compared(comparison: Comparison) -> list[ComparedStep]:
    return [step for step in comparison.catch_up() if isinstance(step, ComparedStep)]
