"""Every cache mode gives the logits of the model without any cache, whatever is done to the sequence on the way."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.cache.contract import HeldRows
from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.sampling import Prompt, SamplingParams
from tests.effort import effort
from tests.engine.tiny import CONFIGS, model_of, prompt_ids

TOLERANCE = 1e-4
WINDOW = 8
LOSSLESS = tuple(name for name, preset in PRESETS.items() if preset.lossless)
KEEPING = tuple(name for name in LOSSLESS if not PRESETS[name].spec.recomputes)


CHUNKS = (5, WINDOW, 64)


def modes_for(architecture: str) -> tuple[str, ...]:
    """The lossless modes that an architecture can have: what keeps no K and V has nothing to page."""
    return tuple(n for n in LOSSLESS if architecture != "mamba" or not PRESETS[n].spec.is_paged)


def uncached_logits(model: LoadedModel, ids: tuple[int, ...] | list[int]) -> torch.Tensor:
    return model.reference_logits(torch.tensor([list(ids)]))


def rows_of(cache: SequenceCache) -> dict[int, HeldRows]:
    """Copies of all rows held now, by layer."""
    held = {i: cache.rows(i) for i in range(len(cache.layers))}
    return {i: HeldRows(r.keys.clone(), r.values.clone(), r.first) for i, r in held.items() if r is not None}


def same_rows(one: dict[int, HeldRows], other: dict[int, HeldRows]) -> bool:
    return one.keys() == other.keys() and all(
        one[i].first == other[i].first
        and torch.equal(one[i].keys, other[i].keys)
        and torch.equal(one[i].values, other[i].values)
        for i in one
    )


def run_forced(session: Session, prompt: tuple[int, ...], forced: tuple[int, ...]) -> torch.Tensor:
    """Logits after the prompt and after each forced token but the last."""
    seq_id = session.submit(Prompt(token_ids=prompt))
    session.force(seq_id, forced)
    logits = []
    while len(logits) < len(forced):
        session.step()
        if not session.sequence(seq_id).is_prefilling:
            newest = session.logits(seq_id)
            assert newest is not None
            logits.append(newest)
    return torch.stack(logits)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_every_lossless_mode_gives_the_uncached_logits(architecture: str) -> None:
    model = model_of(architecture)
    # the prompt is longer than the window of sliding layers
    prompt, forced = prompt_ids(2 * WINDOW + 5), prompt_ids(6, seed=1)
    expected = uncached_logits(model, prompt + forced[:-1])[len(prompt) - 1 :]
    first = list(CONFIGS).index(architecture)
    modes = modes_for(architecture)
    for number, name in enumerate(effort(modes[first % 2 :: 2], modes), first):
        for chunk in effort(CHUNKS[number % 3 :][:1], CHUNKS):
            logits = run_forced(Session(model, PRESETS[name].spec, prefill_chunk=chunk), prompt, forced)
            assert logits.shape == expected.shape
            difference = float((logits - expected).abs().max())
            assert difference <= TOLERANCE, f"{name}, chunk {chunk}: {difference}"
            assert torch.equal(logits.argmax(-1), expected.argmax(-1)), f"{name}, chunk {chunk}"


def test_the_yardstick_would_notice_a_wrong_cache() -> None:
    """One row of one layer off by a tenth moves the logits far beyond the tolerance: the comparison is no formality."""
    model = model_of("llama")
    session = Session(model, CacheSpec("growing"))
    seq_id = session.submit(Prompt(token_ids=prompt_ids(12)))
    session.step()
    held = session.cache_of(seq_id).rows(0)
    assert held is not None
    with torch.inference_mode():
        held.keys[0, 0, 3] += 0.1
    session.step()
    ids = session.sequence(seq_id).token_ids
    newest = session.logits(seq_id)
    assert newest is not None
    assert float((newest - uncached_logits(model, ids)[-1]).abs().max()) > 10 * TOLERANCE


@pytest.mark.parametrize("length", [1, 2, WINDOW - 1, WINDOW, WINDOW + 1, 63, 64, 65, 127, 128])
@pytest.mark.parametrize("name", LOSSLESS)
def test_prompts_at_the_edges_of_windows_and_buffers(name: str, length: int) -> None:
    model = model_of("mistral")
    session = Session(model, PRESETS[name].spec, prefill_chunk=64)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(length)))
    while session.is_prefilling:
        session.step()
    newest = session.logits(seq_id)
    assert newest is not None
    assert float((newest - uncached_logits(model, prompt_ids(length))[-1]).abs().max()) <= TOLERANCE
    if length == model.max_length:
        assert session.sequence(seq_id).stop in ("context full", "cache full")
        assert not session.has_work


MODES = [
    (architecture, name)
    for architecture in ("llama", "mistral", "gemma3_text", "gpt_oss", "deepseek_v3", "lfm2", "mamba")
    for name in modes_for(architecture)
]


@pytest.mark.parametrize(("architecture", "name"), effort(MODES[::5], MODES))
def test_going_back_and_stepping_again_is_exact_to_the_bit(name: str, architecture: str) -> None:
    """Through the first wrap of a sliding window, into the middle of the prompt, and to the first step."""
    model = model_of(architecture)
    session = Session(model, PRESETS[name].spec, prefill_chunk=5)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(12), sampling=SamplingParams(temperature=1.0, seed=3)))
    seen: list[tuple[dict[int, HeldRows], torch.Tensor | None, list[int]]] = []

    def now() -> tuple[dict[int, HeldRows], torch.Tensor | None, list[int]]:
        return rows_of(session.cache_of(seq_id)), session.logits(seq_id), list(session.sequence(seq_id).token_ids)

    def step_to(last: int) -> None:
        while session.last_step is None or session.last_step < last:
            session.step()
            if session.last_step == len(seen):
                seen.append(now())
            rows, logits, ids = now()
            old_rows, old_logits, old_ids = seen[session.last_step]
            assert ids == old_ids
            assert same_rows(rows, old_rows)
            assert torch.equal(logits, old_logits)

    step_to(9)
    for target in (8, 5, 3, 1, 0):
        session.go_to(target)
        step = session.last_step
        assert step == target
        if not PRESETS[name].spec.recomputes:  # without a cache, the present is what the newest forward computed
            assert same_rows(now()[0], seen[target][0])
        assert torch.equal(now()[1], seen[target][1])
        step_to(9)


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma3_text", "deepseek_v3", "bloom", "lfm2", "mamba"])
def test_changing_the_cache_on_the_way_changes_nothing(architecture: str) -> None:
    model = model_of(architecture)
    session = Session(model, CacheSpec("growing"), prefill_chunk=6)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(14)))
    session.force(seq_id, prompt_ids(40, seed=1))  # no end of text on the way
    pairs = [(source, target) for source in modes_for(architecture) for target in modes_for(architecture)]
    for source, target in pairs[:: effort(2 if architecture == "mistral" else 5, 1)]:
        session.set_cache(PRESETS[source].spec)
        session.step()
        session.set_cache(PRESETS[target].spec)
        while session.is_prefilling:
            session.step()
        session.step()
        newest = session.logits(seq_id)
        sequence = session.sequence(seq_id)
        expected = uncached_logits(model, sequence.token_ids[: sequence.num_tokens])[-1]
        assert newest is not None
        assert float((newest - expected).abs().max()) <= TOLERANCE, f"{source} to {target}"
        session.go_to(0)


@pytest.mark.parametrize("source", KEEPING)
@pytest.mark.parametrize("target", KEEPING)
def test_conversion_carries_every_bit(source: str, target: str) -> None:
    session = Session(model_of("llama"), PRESETS[source].spec, prefill_chunk=5)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(13)))
    session.force(seq_id, prompt_ids(5, seed=1))
    for _ in range(5):
        session.step()
    before = rows_of(session.cache_of(seq_id))
    assert "converted" in session.set_cache(PRESETS[target].spec)
    assert same_rows(rows_of(session.cache_of(seq_id)), before)
    assert session.rows_at(seq_id, session.sequence(seq_id).num_tokens).provenance == "live cache"


def test_mamba_says_that_it_has_no_k_and_v() -> None:
    model = model_of("mamba")
    assert "no K and V" in model.info.note
    assert model.info.geometry.attention_layers == ()
    session = Session(model, CacheSpec("growing"))
    session.submit(Prompt(token_ids=prompt_ids(5)))
    record = session.step()
    assert record.sequences[0].rows is None
    assert record.sequences[0].attention is None
    assert record.num_bytes.stored > 0, "its state is memory all the same"
    with pytest.raises(InputError, match="nothing to page"):
        Session(model, PRESETS["paged"].spec)


# ---- random programs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Op:
    name: str
    number: int
    cache: str = ""


OPS = st.one_of(
    st.builds(Op, st.just("step"), st.integers(1, 6)),
    st.builds(Op, st.just("rewind"), st.integers(0, 100)),
    st.builds(Op, st.just("force"), st.integers(3, 127)),
    st.builds(Op, st.just("cache"), st.just(0), st.sampled_from(LOSSLESS)),
)


@settings(max_examples=effort(15, 200), suppress_health_check=list(HealthCheck))
@given(
    architecture=st.sampled_from(["llama", "mistral", "gemma3_text", "lfm2", "deepseek_v3"]),
    cache=st.sampled_from(LOSSLESS),
    chunk=st.sampled_from([1, 3, WINDOW - 1, WINDOW, WINDOW + 1, 64]),
    length=st.sampled_from([1, 2, 5, WINDOW - 1, WINDOW, WINDOW + 1, 20]),
    program=st.lists(OPS, min_size=3, max_size=10),
)
def test_any_program_keeps_the_logits(
    architecture: str, cache: str, chunk: int, length: int, program: list[Op]
) -> None:
    model = model_of(architecture)
    session = Session(model, PRESETS[cache].spec, prefill_chunk=chunk)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(length, seed=length)))
    recorded: list[dict[int, HeldRows] | None] = []
    steps: list[int] = []  # their numbers: one that was gone back from is not used again

    def check() -> None:
        sequence = session.sequence(seq_id)
        newest = session.logits(seq_id)
        assert newest is not None
        expected = uncached_logits(model, sequence.token_ids[: sequence.num_tokens])[-1]
        assert float((newest - expected).abs().max()) <= TOLERANCE
        assert session.cache_of(seq_id).num_tokens == sequence.num_tokens

    for op in program:
        if op.name == "step":
            for _ in range(op.number):
                if not session.has_work:
                    session.force(seq_id, (7,))  # past an end of text
                steps.append(session.step().step)
                recorded.append(rows_of(session.cache_of(seq_id)))
                check()
        elif op.name == "force":
            session.force(seq_id, (op.number,))
        elif op.name == "cache":
            session.set_cache(PRESETS[op.cache].spec)
            recorded = [None] * len(recorded)  # another layout holds other rows, or computed them in another order
        elif op.name == "rewind" and recorded:
            target = op.number % len(recorded)
            session.go_to(steps[target])
            del recorded[target + 1 :], steps[target + 1 :]
            old = recorded[target]
            if old is not None and not session.cache.recomputes:
                assert same_rows(rows_of(session.cache_of(seq_id)), old)
            check()
