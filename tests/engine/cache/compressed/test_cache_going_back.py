"""Every step of a cache that drops rows can be taken back to the bit, and every mode left and entered on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from engine.cache import lost_rows
from engine.cache.compressed import stores
from engine.cache.compressed.retention import LayerView
from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.codec import uniform
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt, SamplingParams
from tests.effort import effort
from tests.engine.cache.compressed.rules import RULES, session_of
from tests.engine.faults import Injected, failing_at
from tests.engine.tiny import model_of, prompt_ids

Tensors = dict[str, torch.Tensor | None]


class State(NamedTuple):
    """All that is known of a sequence: what its cache keeps, what attention reads of it, logits and tokens."""

    kept: Tensors
    read: Tensors
    logits: torch.Tensor
    token_ids: list[int]
    num_tokens: int


def kept_of(cache: SequenceCache, num_tokens: int) -> Tensors | None:
    """A copy of what a cache keeps of so many tokens, in its codes, with what its rule remembers and what counts it
    has; None where not all of it is known any more."""
    if not cache.knows(num_tokens):
        return None
    stored, found = cache.stored(num_tokens), {}
    for index, layer in stored.layers.items():
        if layer.why_not and layer.why_not != "its quantiser keeps its codes to itself":
            return None
        for part, kept in (("keys", layer.keys), ("values", layer.values)):
            found |= {f"{index}.{part}.{name}": tensor for name, tensor in kept.tensors.items()}
            found[f"{index}.{part} coded, ended"] = torch.tensor([kept.num_coded, kept.quantised_at or -1])
        found |= {f"{index}.positions": layer.positions, f"{index}.memory": layer.memory, f"{index}.sinks": layer.sinks}
        found[f"{index} counts"] = torch.tensor([layer.num_tokens, layer.num_rows, layer.first])
    found["ended"] = torch.tensor(stored.prompt_ended_at or -1)
    return {name: None if tensor is None else tensor.clone() for name, tensor in found.items()}


def state_of(session: Session, seq_id: int) -> State:
    cache, newest = session.cache_of(seq_id), session.logits(seq_id)
    read: Tensors = {}
    for index in range(len(cache.layers)):
        rows = cache.rows(index)
        assert rows is not None
        read |= {f"{index}.keys": rows.keys.clone(), f"{index}.values": rows.values.clone()}
        read[f"{index}.positions"] = None if rows.positions is None else rows.positions.clone()
    kept = kept_of(cache, cache.num_tokens)
    assert kept is not None
    assert newest is not None
    return State(kept, read, newest.clone(), list(session.sequence(seq_id).token_ids), cache.num_tokens)


def assert_alike(one: Tensors, other: Tensors) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        there = other[name]
        assert (tensor is None) == (there is None), name
        assert tensor is None or there is None or torch.equal(tensor, there), name


def assert_same(one: State, other: State) -> None:
    assert (one.token_ids, one.num_tokens) == (other.token_ids, other.num_tokens)
    assert torch.equal(one.logits, other.logits)
    assert_alike(one.read, other.read)
    assert_alike(one.kept, other.kept)


class Way(NamedTuple):
    """A prompt of so many tokens, read in chunks, and `targets`: steps to go back to, each with how many follow."""

    chunk: int
    length: int
    targets: list[tuple[int, int]]


WAYS = st.builds(
    Way,
    chunk=st.sampled_from([1, 5, 8, 64]),
    length=st.sampled_from([1, 7, 20, 33]),
    targets=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), min_size=2, max_size=6),
)


def go_back_and_forth(spec: CacheSpec, way: Way, check: Callable[[Session], object] = lambda session: None) -> None:
    """25 steps, then back to each target and so many steps on: every step is what it was the first time."""
    session = Session(model_of("llama"), spec, prefill_chunk=way.chunk)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(way.length), sampling=SamplingParams(temperature=1.0, seed=3)))
    session.force(seq_id, prompt_ids(60, seed=1))
    seen: list[State] = []

    def step() -> None:
        session.step()
        check(session)
        now = state_of(session, seq_id)
        assert session.last_step is not None
        if session.last_step == len(seen):
            seen.append(now)
        assert_same(now, seen[session.last_step])

    for _ in range(25):
        step()
    for target, steps in way.targets:
        assert session.last_step is not None
        session.go_to(target % (session.last_step + 1))
        check(session)
        assert_same(state_of(session, seq_id), seen[session.last_step])
        for _ in range(steps):
            step()
    cache = session.cache_of(seq_id)
    for past in seen:  # what is told of a moment before the present is what stood there
        then = kept_of(cache, past.num_tokens) if past.num_tokens <= cache.num_tokens else None
        if then is not None:
            assert_alike(then, past.kept)


SPECS = {
    **{name: CacheSpec(retention=rule) for name, rule in RULES.items()},
    **{name: CacheSpec(codec=uniform(name)) for name in ("fp8", "fp8-head", "fp8-token-head", "int8")},  # type: ignore[arg-type]
    "kivi-4": CacheSpec(codec=uniform("kivi-4", 8, 8)),
    "kivi-2": CacheSpec(codec=uniform("kivi-2", 16, 16)),
    "fp8-max": CacheSpec(codec=uniform("fp8-max", 8)),
    "pyramid": CacheSpec(retention=RetentionSpec("h2o", budget=10, schedule="pyramid")),
    "by layer": CacheSpec(retention=RetentionSpec("tova", layer_budgets=(14, 6))),
    "int8+h2o": CacheSpec(codec=uniform("int8"), retention=RULES["h2o"]),
    "fp8+tova": CacheSpec(codec=uniform("fp8"), retention=RULES["tova"]),
    "transformers": PRESETS["transformers-quantized"].spec,
}


EVERYWHERE = Way(8, 20, [(24, 1), (21, 2), (22, 1), (13, 2), (3, 1), (2, 2), (1, 1), (0, 2)])  # and steps behind it


@settings(max_examples=effort(8, 200), suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(list(SPECS)), way=WAYS)
@example("int8+h2o", EVERYWHERE)
@example("rerotated", EVERYWHERE)
def test_going_back_and_stepping_again_is_exact_to_the_bit(name: str, way: Way) -> None:
    go_back_and_forth(SPECS[name], way)


def test_the_journal_goes_back_without_computing() -> None:
    session, _ = session_of(RULES["h2o"])
    for _ in range(20):
        session.step()
    assert "put" in session.go_to(5)
    assert "put" not in session.go_to(5)
    assert session.bytes().looking > 0


@pytest.mark.parametrize("name", ["kivi-4", "fp8", "fp8-head"])
def test_exact_rows_of_the_prompt_come_back_without_computing(name: str) -> None:
    """From the log, where the codes that the prompt was read from at its end are no help."""
    session = Session(model_of("llama"), SPECS[name], prefill_chunk=8)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(22)))
    session.force(seq_id, prompt_ids(20, seed=1))
    session.step()
    first = state_of(session, seq_id)
    for _ in range(12):
        session.step()
    cache = session.cache_of(seq_id)
    then = kept_of(cache, first.num_tokens)
    assert then is not None
    assert_alike(then, first.kept)
    assert [cache.num_final(part, first.num_tokens) for part in ("keys", "values")] == [[0, 0], [0, 0]]
    assert [cache.layers[0].exact_from(n, "keys") for n in (first.num_tokens, 30)] == [
        0,
        24 if name == "kivi-4" else 30,
    ]
    assert not session.go_to(0).startswith("repeated")
    assert_same(state_of(session, seq_id), first)


@pytest.mark.parametrize("max_bytes", [100 << 10, 3_000])
def test_the_exact_rows_behind_kivis_residual_are_in_the_log(max_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "SPARE_ROWS", 3)
    monkeypatch.setattr(lost_rows, "MAX_BYTES", max_bytes)
    go_back_and_forth(SPECS["kivi-4"], EVERYWHERE)


def test_a_failure_while_rows_are_dropped_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    session, seq_id = session_of(RULES["knorm"])
    for _ in range(6):
        session.step()
    before = state_of(session, seq_id)
    from engine.cache.compressed import retention

    calls = 0

    def failing(self: Any, view: LayerView) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise MemoryError("no room")
        return original(self, view)

    original = retention.SmallNorms.score
    monkeypatch.setattr(retention.SmallNorms, "score", failing)
    with pytest.raises(MemoryError):
        session.step()
    monkeypatch.undo()
    assert_same(state_of(session, seq_id), before)
    session.step()


@pytest.mark.parametrize("name", SPECS)
def test_full_becomes_smaller_and_what_was_lost_is_prefilled_again(name: str) -> None:
    session, seq_id = session_of(RetentionSpec())
    for _ in range(8):
        session.step()
    exact = state_of(session, seq_id)
    how = session.set_cache(SPECS[name])
    needs_history = SPECS[name].retention.name in ("h2o", "snapkv")
    assert how.startswith("re-prefilled" if needs_history else "converted without recomputing"), how
    if not SPECS[name].retention.keeps_all and SPECS[name].codec.is_exact and not needs_history:
        rows = session.cache_of(seq_id).rows(0)
        assert rows is not None
        if rows.positions is not None and name != "rerotated":
            picked = rows.positions[0]
            assert torch.equal(rows.keys[0, 0], exact.read["0.keys"][0, 0, picked])
    session.step()
    assert session.set_cache(CacheSpec()).startswith("re-prefilled")
    session.step()
    sequence = session.sequence(seq_id)
    newest = session.logits(seq_id)
    assert newest is not None
    expected = session.model.reference_logits(torch.tensor([sequence.token_ids[: sequence.num_tokens]]))[-1]
    assert float((newest - expected).abs().max()) < 1e-4


@pytest.mark.parametrize("name", SPECS)
def test_a_conversion_that_fails_half_way_leaves_the_old_cache_whole(name: str) -> None:
    session, seq_id = session_of(RetentionSpec())
    for _ in range(6):
        session.step()
    before = state_of(session, seq_id)
    number, outcome = 1, failing_at(1, lambda: session.set_cache(SPECS[name]))
    while isinstance(outcome, Injected) and session.cache == CacheSpec():  # once it is another, only words are left
        assert_same(state_of(session, seq_id), before)
        number += effort(53, 1)
        outcome = failing_at(number, lambda: session.set_cache(SPECS[name]))
    assert session.cache == SPECS[name]
    assert session.cache_of(seq_id).spec == SPECS[name]
    session.step()


@pytest.mark.parametrize("name", [name for name in SPECS if name != "transformers"])
@pytest.mark.parametrize("tensor", ["keys", "values"])
@pytest.mark.parametrize("steps_before", [0, 4])
def test_a_bad_number_is_flagged_in_the_step_that_made_it(name: str, tensor: str, steps_before: int) -> None:
    """Coding must not hide it and dropping must not come first."""
    session = Session(model_of("llama"), SPECS[name], prefill_chunk=64)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(20)))
    session.force(seq_id, prompt_ids(10, seed=1))
    for _ in range(steps_before):
        assert not session.step().non_finite
    first, attention = session.sequence(seq_id).num_tokens, session.model.model.model.layers[1].self_attn
    weight = (attention.k_proj if tensor == "keys" else attention.v_proj).weight
    original = weight.detach()[19].clone()
    try:
        with torch.no_grad():
            weight[19] = torch.nan
        record = session.step()
    finally:
        with torch.no_grad():
            weight[19] = original
    found = [place for place in record.non_finite if place.tensor == tensor]
    assert {(place.layer, place.kv_head) for place in found} == {(1, 1)}
    assert [place.position for place in found] == list(range(first, record.sequences[0].num_tokens))


def test_a_mode_that_is_refused_leaves_the_live_cache_alone() -> None:
    session = Session(model_of("mistral"), CacheSpec())
    seq_id = session.submit(Prompt(token_ids=prompt_ids(12)))
    session.step()
    before = state_of(session, seq_id)
    with pytest.raises(InputError):
        session.set_cache(CacheSpec(retention=RULES["h2o"]))
    assert session.cache == CacheSpec()
    assert_same(state_of(session, seq_id), before)


def test_a_fork_goes_its_own_way() -> None:
    session, seq_id = session_of(RULES["h2o"])
    for _ in range(6):
        session.step()
    fork = session.fork(seq_id).child
    assert_same(state_of(session, fork), state_of(session, seq_id))
    before = state_of(session, fork)
    session.stop(fork)
    session.step()
    assert_same(state_of(session, fork), before)


@pytest.mark.parametrize("architecture", ["gemma3_text", "gpt_oss", "lfm2"])
@pytest.mark.parametrize("name", ["h2o", "sinks+window", "snapkv"])
def test_mixed_models_go_back_to_the_bit(architecture: str, name: str) -> None:
    """From the journal where layers only keep rows; by computing again what was computed where a state only moves
    forward."""
    session, seq_id = session_of(RULES[name], model_of(architecture))

    def state() -> tuple[torch.Tensor, ...]:
        cache, newest = session.cache_of(seq_id), session.logits(seq_id)
        assert newest is not None
        rows = [r for index in range(len(cache.layers)) if (r := cache.rows(index)) is not None]
        return (newest.clone(), *(t.clone() for r in rows for t in (r.keys, r.values)))

    seen = []
    for _ in range(12):
        session.step()
        seen.append(state())
    for target in (8, 3, 1):
        how = session.go_to(target)
        if name != "snapkv":  # what it remembers of a prompt is too large to be noted at every chunk
            assert how.startswith("repeated" if architecture == "lfm2" else ("put", "cropped")), how
        assert all(map(torch.equal, state(), seen[target]))
        for step in range(target + 1, 11):
            session.step()
            assert all(map(torch.equal, state(), seen[step]))


def test_bytes_of_mixed_models_are_the_formula() -> None:
    for architecture in ("gemma3_text", "lfm2", "gpt_oss"):
        session, _ = session_of(RULES["h2o"], model_of(architecture))
        for _ in range(8):
            record = session.step()
            for layer in record.num_bytes.layers:
                assert layer.kind == "linear" or layer.stored == layer.predicted, (architecture, layer)
