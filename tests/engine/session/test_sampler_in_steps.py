"""Which token is computed next: sampled, drawn again, or forced."""

from __future__ import annotations

import pytest

from engine.errors import InputError
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.sampling import Prompt, SamplingParams
from tests.engine.session.sessions import started
from tests.engine.tiny import model_of, prompt_ids


def test_sampling_repeats_after_going_back_and_with_the_seed() -> None:
    def tokens(session: Session, seq_id: int) -> list[int]:
        while session.sequence(seq_id).num_tokens < 24:
            if not session.has_work:
                session.force(seq_id, (7,))
            session.step()
        return session.sequence(seq_id).token_ids

    session, seq_id = started(temperature=1.5, seed=11, top_k=50)
    first = list(tokens(session, seq_id))
    session.go_to(4)
    assert tokens(session, seq_id) == first
    again, other = started(temperature=1.5, seed=11, top_k=50), started(temperature=1.5, seed=12, top_k=50)
    assert tokens(*again) == first
    assert tokens(*other) != first


def test_another_temperature_chooses_the_waiting_token_again_but_never_a_forced_one() -> None:
    session, seq_id = started(temperature=0.0)
    greedy = session.step().sequences[0].sampled
    drawn = set()
    for seed in range(40):
        session.set_sampling(SamplingParams(temperature=5.0, seed=seed), seq_id)
        drawn.add(session.sequence(seq_id).sampled)
    assert len(drawn) > 3
    session.set_sampling(SamplingParams(), seq_id)
    assert session.sequence(seq_id).sampled == greedy
    session.force(seq_id, (99,))
    session.set_sampling(SamplingParams(temperature=5.0), seq_id)
    assert session.sequence(seq_id).sampled == 99


def test_forced_tokens_are_computed_in_order_before_the_samplers() -> None:
    session, seq_id = started(chunk=3)
    session.force(seq_id, (40, 41))  # while the prompt is still being read
    while session.is_prefilling:
        session.step()
    assert session.step().sequences[0].token_ids == (40,)
    session.force(seq_id, (50, 51, 52))
    computed = [session.step().sequences[0] for _ in range(4)]
    assert [f.token_ids[0] for f in computed[:3]] == [50, 51, 52]
    assert [f.forced for f in computed] == [True, True, True, False]
    for bad in ((128,), (-1,)):
        with pytest.raises(InputError, match="outside the vocabulary"):
            session.force(seq_id, bad)


def test_a_preempted_sequence_keeps_its_forced_tokens() -> None:
    spec = CacheSpec("paged", page_size=4, num_pages=8)
    session = Session(model_of("llama"), spec)
    ids = [session.submit(Prompt(token_ids=prompt_ids(7, seed=n))) for n in (1, 2)]
    forced = [prompt_ids(12, seed=10 + n) for n in ids]
    for seq_id, tokens in zip(ids, forced, strict=True):
        session.force(seq_id, tokens)
    preempted = 0
    for _ in range(60):
        if not session.has_work:
            break
        preempted += len(session.step().preempted)
        for seq_id, tokens in zip(ids, forced, strict=True):
            if session.sequence(seq_id).num_tokens >= 15:
                session.stop(seq_id)
            computed = tuple(session.sequence(seq_id).token_ids[7:])
            assert computed[:12] == tokens[: len(computed)]
    assert preempted, "the pool was large enough after all"
