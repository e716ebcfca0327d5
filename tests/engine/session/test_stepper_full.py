"""A context or a cache that is exactly full: no command computes a token beyond it."""

from __future__ import annotations

import pytest

from engine.errors import InputError
from engine.history.state import SharedList
from engine.session.session import Session
from engine.spec.cache import CacheSpec, cache_named, tuned
from engine.spec.sampling import LogitBias, Prompt, SamplingParams
from tests.engine.session.sessions import set_state
from tests.engine.tiny import model_of, prompt_ids

GROWING, LIMIT = CacheSpec("growing"), 128


def filled(cache: CacheSpec, length: int) -> Session:
    """A session whose only sequence has just so many tokens in its cache, and more are forced."""
    session = Session(model_of("llama"), cache)
    session.submit(Prompt(token_ids=prompt_ids(length - 3)))
    session.force(0, prompt_ids(20, seed=2))
    while session.sequence(0).num_tokens < length:
        session.step()
    return session


def test_the_last_place_is_used_and_no_forced_token_goes_past_it() -> None:
    session = filled(CacheSpec("static", max_length=16), 16)
    assert session.sequence(0).stop == "cache full"
    assert not session.has_work
    with pytest.raises(InputError, match="no room for another token \\(cache full\\)"):
        session.force(0, (5,))


def test_an_end_of_text_where_all_is_full_lets_no_forced_token_through() -> None:
    session = filled(CacheSpec("static", max_length=16), 15)
    (end,) = session.model.end_ids
    session.set_sampling(SamplingParams(bias=LogitBias(((end, 1e4),))), 0)
    session.step()
    token = session.sequence(0)
    assert (token.num_tokens, token.stop) == (16, "cache full")
    assert not session.has_work


@pytest.mark.parametrize(
    ("cache", "length", "why"),
    [(CacheSpec("static", max_length=16), 16, "cache full"), (GROWING, LIMIT, "context full")],
)
def test_stopping_keeps_the_reason_and_no_token_revives_it(cache: CacheSpec, length: int, why: str) -> None:
    session = filled(cache, length)
    session.stop(0)
    assert session.sequence(0).stop == why
    with pytest.raises(InputError, match=why):
        session.force(0, (5,))
    session.set_sampling(SamplingParams(temperature=2.0), 0)
    assert not session.has_work


def test_a_full_context_goes_on_in_a_mode_that_has_no_end() -> None:
    session = filled(GROWING, LIMIT)
    assert session.sequence(0).stop == "context full"
    session.set_cache(tuned(cache_named("streamingllm"), sinks=2, window=6, rerotate=True))
    assert session.sequence(0).stop is None
    session.set_cache(GROWING)
    assert session.sequence(0).stop == "context full"


def test_one_stopped_before_it_was_full_is_not_revived_by_another_sampling() -> None:
    session = filled(GROWING, 10)
    session.stop(0)
    set_state(session, 0, forced=SharedList())
    set_state(session, 0, sampled_is_forced=False)
    session.set_sampling(SamplingParams(temperature=2.0), 0)
    assert session.sequence(0).stop == "stopped"
    session.force(0, (5,))
    assert session.has_work


def test_a_cache_that_is_full_with_what_it_takes_over_says_so() -> None:
    session = filled(GROWING, 16)
    assert session.has_work
    session.set_cache(CacheSpec("static", max_length=16))
    assert session.sequence(0).stop == "cache full"
    assert not session.has_work
    with pytest.raises(InputError, match="cache full"):
        session.force(0, (5,))
    session.set_cache(GROWING)
    assert session.step().sequences[0].num_tokens == 17


def test_stopped_then_moved_to_a_full_cache_it_is_not_revived_either() -> None:
    session = filled(GROWING, 16)
    session.stop(0)
    session.set_cache(CacheSpec("static", max_length=16))
    with pytest.raises(InputError, match="cache full"):
        session.force(0, (5,))


@pytest.mark.parametrize("spec", [CacheSpec("static", max_length=12), CacheSpec("paged", page_size=4, num_pages=4)])
def test_a_mode_without_room_for_a_waiting_prompt_is_refused(spec: CacheSpec) -> None:
    session = Session(model_of("llama"), GROWING, prefill_chunk=8)
    session.submit(Prompt(token_ids=prompt_ids(20)))
    for computed in (0, 8):
        assert session.sequence(0).num_tokens == computed
        with pytest.raises(InputError, match=r"Sequence 0 has 20 tokens and this .* holds 12"):
            session.set_cache(spec)
        assert session.cache == GROWING
        session.step()


def test_a_preempted_sequence_that_ended_goes_on_with_a_token_given_to_it() -> None:
    session = filled(GROWING, 10)
    session.stop(0)
    session.cache_of(0).clear()
    live = session.live.get(0)
    live.sequence = live.sequence.preempted()
    session.force(0, (7,))
    assert session.has_work
    session.step()
    assert session.step().sequences[0].token_ids == (7,)


@pytest.mark.parametrize(
    "to", [CacheSpec("dynamic"), CacheSpec("paged"), CacheSpec("none")], ids=lambda spec: spec.layout
)
def test_a_context_that_is_just_full_moves_into_another_mode_and_back(to: CacheSpec) -> None:
    session = filled(GROWING, LIMIT)
    session.set_cache(to)
    assert (session.sequence(0).num_tokens, session.sequence(0).stop) == (LIMIT, "context full")
    session.go_to(0)
    assert session.cache == GROWING
    assert session.has_work
