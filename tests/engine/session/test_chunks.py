"""Chunk sizes of a prompt: always the same for a model and a length, so that two runs agree to the last bit."""

from __future__ import annotations

import pytest
import torch

from engine.session.chunks import LARGEST, MEMORY_BYTES, SMALLEST, PrefillPlan, power_of_two
from engine.session.session import Session
from engine.spec.cache import PRESETS
from engine.spec.sampling import Prompt
from tests.effort import effort
from tests.engine.predict.test_bytes import small
from tests.engine.tiny import model_of, prompt_ids


def test_sizes_are_powers_of_two() -> None:
    assert [power_of_two(n) for n in (0.3, 1, 1023.9, 1024, 1500.0)] == [1, 1, 512, 1024, 1024]


def test_a_larger_model_has_smaller_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("llama")
    assert PrefillPlan.of(model).size == LARGEST == 2048

    def size_with(flops: float) -> int:
        monkeypatch.setattr("engine.session.chunks.flops_per_token", lambda model: flops)
        return PrefillPlan.of(model).size

    two_layers = 2 * 3.5e10
    assert size_with(two_layers / 1100) == 1024, "a cancel is checked at every layer"
    assert size_with(two_layers / 900) == 512
    assert size_with(1e12) == SMALLEST == 64
    monkeypatch.setattr("engine.session.chunks.num_checks", lambda model: 30)
    assert size_with(0.27e9) == 1024, "SmolLM2-135M: the time of the chunk limits it"


def test_embeddings_do_not_count_as_work() -> None:
    from engine.session.chunks import flops_per_token

    for name, num_embeddings in (("gpt2", 0), ("llama", 128 * 64)):  # gpt2 uses its embeddings as the output head, too
        model = model_of(name)
        assert flops_per_token(model) == 2 * (model.info.num_parameters - num_embeddings)


def test_a_long_context_has_smaller_chunks_so_that_memory_is_bounded() -> None:
    plan = PrefillPlan(2048, 8)
    assert [plan.next_size(n) for n in (0, 14_336, 14_337, 60_000, 130_000)] == [2048, 2048, 1024, 512, 256]
    for start in range(0, 1 << 20, 9973):
        assert plan.next_size(start) * (start + plan.next_size(start)) * 8 <= MEMORY_BYTES
    assert list(PrefillPlan(100, 8).lengths(250)) == [100, 200, 250]
    assert PrefillPlan(100).next_size(1 << 20) == 100, "what somebody asked for"


def test_a_model_that_returns_its_attention_weights_has_smaller_chunks_still() -> None:
    assert PrefillPlan.of(model_of("llama")).cell_bytes == 8
    assert PrefillPlan.of(model_of("bloom")).cell_bytes == 8 + 4 * 2 * 4, "two layers of four heads"


@pytest.mark.parametrize("cache", effort([*PRESETS][::2], [*PRESETS]))
def test_two_sessions_of_a_prompt_agree_to_the_last_bit(cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any mode, however long the chunks of the first one took."""
    monkeypatch.setattr("engine.session.chunks.LARGEST", 16)
    monkeypatch.setattr("engine.session.chunks.SMALLEST", 16)
    found = []
    for _ in range(2):
        session = Session(model_of("llama"), small(PRESETS[cache]))
        seq_id = session.submit(Prompt(token_ids=prompt_ids(70)))
        session.force(seq_id, prompt_ids(12, seed=1))
        seen = []
        for _ in range(10):
            part = session.step().sequences[0]
            newest = session.logits(seq_id)
            assert newest is not None
            seen.append((len(part.token_ids), part.surprisal, newest.clone()))
        rows = [session.cache_of(seq_id).rows(layer) for layer in range(2)]
        found.append((seen, [(held.keys.clone(), held.values.clone()) for held in rows if held is not None]))
    for (size, surprisal, logits), (other_size, other_surprisal, other_logits) in zip(
        found[0][0], found[1][0], strict=True
    ):
        assert (size, surprisal) == (other_size, other_surprisal)
        assert torch.equal(logits, other_logits)
    for mine, its in zip(found[0][1], found[1][1], strict=True):
        assert torch.equal(mine[0], its[0])
        assert torch.equal(mine[1], its[1])


@pytest.mark.parametrize("cache", ["growing", "paged", "h2o", "int8"])
def test_a_replay_repeats_uneven_pieces_to_the_bit(cache: str) -> None:
    """Pieces of 16, 32, 7 and 9 tokens, and some steps."""
    session = Session(model_of("llama"), PRESETS[cache].spec)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(64)))
    session.force(seq_id, prompt_ids(12, seed=1))
    sizes, logits = [], []
    for size in (16, 32, 7, 9, 1, 1, 1):
        session.scheduler.plan = PrefillPlan(size)
        sizes.append(len(session.step().sequences[0].token_ids))
        newest = session.logits(seq_id)
        assert newest is not None
        logits.append(newest.clone())
    assert sizes == [16, 32, 7, 9, 1, 1, 1]
    session.live.get(seq_id).cache.clear()
    session.live.get(seq_id).is_stale = True
    session.go_to(4)
    for expected in logits[5:]:
        session.step()
        again = session.logits(seq_id)
        assert again is not None
        assert torch.equal(again, expected)
