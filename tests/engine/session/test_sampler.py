"""Choosing the next token, compared with a slow reference in plain Python."""

from __future__ import annotations

import math
from math import inf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.look.candidates import NUM_CANDIDATES
from engine.session.sampler import SampledToken, choose, filtered, steered
from engine.spec.sampling import LogitBias, SamplingParams
from tests.effort import effort

LOGITS = st.lists(
    st.sampled_from([-8.0, -3.0, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 2.0, 2.5, 4.0, 9.0]), min_size=2, max_size=40
)


def slow_filter(logits: list[float], params: SamplingParams) -> list[float]:
    """Temperature, top-k, top-p, min-p in plain Python: probabilities, renormalised once at the end."""
    scaled = [x / params.temperature for x in logits]
    kept = set(range(len(scaled)))
    if params.top_k is not None:
        floor = sorted(scaled, reverse=True)[min(params.top_k, len(scaled)) - 1]
        kept = {i for i in kept if scaled[i] >= floor}  # equal ones stay together
    peak = max(scaled)
    weight = {i: math.exp(scaled[i] - peak) for i in kept}
    total = math.fsum(weight.values())
    probs = {i: w / total for i, w in weight.items()}
    if params.top_p is not None and params.top_p < 1:
        before, chosen = 0.0, set()
        for i in sorted(probs, key=lambda i: -probs[i]):
            if before < params.top_p:
                chosen.add(i)
            before += probs[i]
        probs = {i: probs[i] for i in chosen}
    if params.min_p:
        largest = max(probs.values())
        probs = {i: p for i, p in probs.items() if p >= params.min_p * largest}
    total = math.fsum(probs.values())
    return [probs.get(i, 0.0) / total for i in range(len(logits))]


def pick(logits: list[float], position: int = 0, **params: float | int) -> SampledToken:
    return choose(torch.tensor(logits), SamplingParams(**params), position, str)  # type: ignore[arg-type]


@settings(max_examples=effort(100, 1000))
@given(
    logits=LOGITS,
    temperature=st.sampled_from([0.1, 0.7, 1.0, 1.5, 3.0]),
    top_k=st.none() | st.integers(1, 50),
    top_p=st.none() | st.sampled_from([0.05, 0.31, 0.52, 0.77, 0.93, 1.0]),
    min_p=st.none() | st.sampled_from([0.0, 0.011, 0.13, 0.47, 1.0]),
)
def test_filters_agree_with_the_slow_reference(
    logits: list[float], temperature: float, top_k: int | None, top_p: float | None, min_p: float | None
) -> None:
    params = SamplingParams(temperature, top_k, top_p, min_p)
    fast, slow = filtered(torch.tensor(logits), params).tolist(), slow_filter(logits, params)
    # which of several equal tokens top-p keeps last is not specified: compare the kept probabilities, sorted
    assert sorted(fast) == pytest.approx(sorted(slow), abs=1e-5)
    if top_p is None:
        assert fast == pytest.approx(slow, abs=1e-5)
    assert sum(fast) == pytest.approx(1.0, abs=1e-5)


def test_top_p_keeps_the_smallest_set_that_holds_it() -> None:
    half = math.log(0.5)
    assert filtered(torch.tensor([half, math.log(0.3), math.log(0.2)]), SamplingParams(1.0, top_p=0.5)).tolist() == [
        1,
        0,
        0,
    ]
    kept = filtered(torch.tensor([half, math.log(0.3), math.log(0.2)]), SamplingParams(1.0, top_p=0.51)).tolist()
    assert kept == pytest.approx([0.625, 0.375, 0.0])


@settings(max_examples=100)
@given(logits=LOGITS, seed=st.integers(0, 2**63 - 1), position=st.integers(0, 10**6), top_k=st.integers(1, 5))
def test_the_draw_depends_on_seed_and_position_alone(logits: list[float], seed: int, position: int, top_k: int) -> None:
    one = pick(logits, position, temperature=1.0, seed=seed, top_k=top_k)
    torch.rand(7)  # the global generator has no part in it
    again = pick(logits, position, temperature=1.0, seed=seed, top_k=top_k)
    assert one == again
    params = SamplingParams(1.0, top_k=top_k)
    assert filtered(torch.tensor(logits), params)[one.token_id] > 0, "a filtered token was drawn"


def test_draws_follow_the_distribution() -> None:
    logits = [math.log(p) for p in (0.6, 0.3, 0.1)]
    drawn = [pick(logits, position, temperature=1.0, seed=5).token_id for position in range(2000)]
    shares = [drawn.count(i) / len(drawn) for i in range(3)]
    assert shares == pytest.approx([0.6, 0.3, 0.1], abs=0.04)


@given(logits=LOGITS)
@settings(max_examples=100)
def test_greedy_takes_the_first_of_the_largest(logits: list[float]) -> None:
    """Half precision makes equal logits common, and transformers takes the first of them."""
    choice = pick(logits)
    assert choice.token_id == logits.index(max(logits)) == int(torch.tensor(logits).argmax())
    assert choice.candidates[0].token_id == choice.token_id
    assert choice.candidates[0].sampled_prob == 1.0
    assert sum(c.sampled_prob for c in choice.candidates) == 1.0


def test_greedy_among_many_equals_in_a_large_vocabulary() -> None:
    logits = torch.zeros(50_000)
    logits[17::3] = 1.0
    choice = choose(logits, SamplingParams(), 0, str)
    assert choice.token_id == 17
    assert choice.candidates[0].token_id == 17


@settings(max_examples=100)
@given(logits=LOGITS, temperature=st.sampled_from([0.0, 0.5, 5.0]))
def test_candidates_are_the_most_probable_with_their_logprobs(logits: list[float], temperature: float) -> None:
    choice = pick(logits, temperature=temperature)
    raw = torch.tensor(logits).log_softmax(-1).tolist()
    assert len(choice.candidates) == min(NUM_CANDIDATES, len(logits))
    shown = [c.logprob for c in choice.candidates]
    assert shown == sorted(shown, reverse=True)
    for candidate in choice.candidates:
        assert candidate.logprob == pytest.approx(raw[candidate.token_id], abs=1e-5)
        assert candidate.prob == pytest.approx(math.exp(candidate.logprob))
        assert candidate.text == str(candidate.token_id)
    top = sorted(raw, reverse=True)[: len(shown) - 1]
    assert shown[: len(top)] == pytest.approx(top, abs=1e-5)
    assert choice.token_id in {c.token_id for c in choice.candidates}, "what was chosen is always shown"
    assert choice.entropy == pytest.approx(-sum(math.exp(x) * x for x in raw), abs=1e-4)


def test_a_padded_vocabulary_has_a_finite_entropy() -> None:
    choice = pick([1.0, 1.0, -math.inf, -math.inf])
    assert choice.entropy == pytest.approx(math.log(2))
    assert choice.candidates[-1].prob == 0.0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_still_choose_a_token(bad: float, temperature: float) -> None:
    """Always the same token, whatever the sampling, and the sample says that the logits were not finite."""
    logits, sampling = torch.tensor([0.0, bad, 1.0]), SamplingParams(temperature=temperature)
    for bias, ruled in ((None, None), (LogitBias(biases=((2, 1.0),)), None), (None, logits + 1)):
        choice = choose(logits, replace(sampling, bias=bias), 0, str, ruled)
        assert (choice.token_id, choice.is_finite) == (0, False)
        assert math.isnan(choice.entropy)
    assert pick([3.0, -inf, 1.0], temperature=temperature).is_finite


def test_a_tiny_temperature_is_greedy_and_a_huge_one_uniform() -> None:
    assert filtered(torch.tensor([1.0, 2.0, 1.9]), SamplingParams(1e-9)).tolist() == pytest.approx([0, 1, 0])
    assert filtered(torch.tensor([1.0, 2.0, 1.9]), SamplingParams(1e9)).tolist() == pytest.approx([1 / 3] * 3)


def test_a_token_that_is_drawn_from_far_below_is_listed_in_place_of_the_last_candidate() -> None:
    """With nearly equal probabilities most draws are not among the twenty candidates."""
    falling = [-i / 1000 for i in range(200)]
    found = [pick(falling, position, temperature=1.0) for position in range(20)]
    beyond = [one for one in found if one.token_id >= NUM_CANDIDATES]
    assert len(beyond) > 10
    for one in beyond:
        listed = [candidate.token_id for candidate in one.candidates]
        assert listed == [*range(NUM_CANDIDATES - 1), one.token_id]


@pytest.mark.parametrize(
    ("bias", "made"),
    [
        (None, [0.0, 1.0, 2.0, 3.0]),
        (LogitBias(biases=((1, 2.5), (3, -1.0))), [0.0, 3.5, 2.0, 2.0]),
        (LogitBias(banned=(0, 2)), [-inf, 1.0, -inf, 3.0]),
        (LogitBias(only=(1, 3)), [-inf, 1.0, -inf, 3.0]),
        (LogitBias(((1, 2.5),), banned=(3,), only=(1, 3)), [-inf, 3.5, -inf, -inf]),
    ],
)
def test_logits_are_steered_as_asked(bias: LogitBias | None, made: list[float]) -> None:
    logits = torch.arange(4.0)
    assert steered(logits, bias).tolist() == made
    assert logits.tolist() == [0.0, 1.0, 2.0, 3.0]
