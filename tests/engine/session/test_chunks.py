"""The size of a prefill chunk: what the machine does in 200 ms; a replay repeats the pieces exactly."""

from __future__ import annotations

import pytest
import torch

from engine.session.chunks import FIRST, LARGEST, SMALLEST, PrefillChunk
from engine.session.session import Session
from engine.spec.presets import PRESETS
from engine.spec.sampling import Prompt
from tests.engine.tiny import model_of, prompt_ids


def test_it_is_what_goes_through_in_200_ms() -> None:
    chunk = PrefillChunk()
    assert chunk.size == FIRST == 64
    chunk.took(64, 0.16)
    assert chunk.size == 80, "400 tokens a second, in steps of 16"
    chunk.took(80, 0.8)
    assert chunk.size == 16, "a machine that is busy now"
    chunk.took(16, 20.0)
    assert chunk.size == SMALLEST == 16


def test_it_grows_by_four_at_most_and_not_without_end() -> None:
    chunk, sizes = PrefillChunk(), []
    for _ in range(5):
        chunk.took(chunk.size, 1e-3)
        sizes.append(chunk.size)
    assert sizes == [256, 1024, 4096, 4096, 4096]
    assert sizes[-1] == LARGEST


def test_the_rest_of_a_prompt_tells_nothing() -> None:
    chunk = PrefillChunk()
    chunk.took(63, 60.0)
    assert chunk.size == 64


def test_a_fixed_size_stays() -> None:
    chunk = PrefillChunk(5)
    chunk.took(5, 60.0)
    assert chunk.size == 5


@pytest.mark.parametrize("cache", ["growing", "paged", "h2o", "int8"])
def test_a_replay_repeats_uneven_pieces_to_the_bit(cache: str) -> None:
    """Pieces of 16, 32, 7 and 9 tokens, as a machine that is sometimes busy makes them, and some steps."""
    session = Session(model_of("llama"), PRESETS[cache].spec)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(64)))
    session.force(seq_id, prompt_ids(12, seed=1))
    sizes, logits = [], []
    for size in (16, 32, 7, 9, 1, 1, 1):
        session._chunk.size = size
        sizes.append(len(session.step().sequences[0].token_ids))
        newest = session.logits(seq_id)
        assert newest is not None
        logits.append(newest.clone())
    assert sizes == [16, 32, 7, 9, 1, 1, 1]
    session.live.get(seq_id).cache.clear()
    session.live.get(seq_id).is_stale = True
    session.rewind(4)
    for expected in logits[5:]:
        session.step()
        again = session.logits(seq_id)
        assert again is not None
        assert torch.equal(again, expected)
