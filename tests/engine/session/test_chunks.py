"""The size of a prefill chunk: what the machine does in a second; a replay repeats the pieces exactly."""

from __future__ import annotations

import pytest
import torch

from engine.session.chunks import FIRST, LARGEST, SMALLEST, PrefillChunk
from engine.session.session import Session
from engine.spec.presets import PRESETS
from engine.spec.sampling import Prompt
from tests.engine.tiny import model_of, prompt_ids


def test_it_is_the_power_of_two_that_goes_through_in_a_second() -> None:
    chunk = PrefillChunk()
    assert chunk.size == FIRST == 256
    chunk.took(256, 0.39)
    assert chunk.size == 512, "656 tokens a second"
    chunk.took(512, 4.0)
    assert chunk.size == 128, "a machine that is busy now"
    chunk.took(128, 20.0)
    assert chunk.size == SMALLEST == 64
    chunk.took(64, 1e-3)
    assert chunk.size == LARGEST == 2048


def test_it_stays_while_it_fits_more_or_less() -> None:
    """So two runs of a prompt mostly have the same pieces, although no two take the same time."""
    chunk = PrefillChunk()
    for seconds in (0.41, 1.59, 0.7, 1.2):
        chunk.took(256, seconds)
        assert chunk.size == 256
    chunk.took(256, 1.61)
    assert chunk.size == 128


def test_where_a_cancel_is_looked_at_once_a_forward_it_takes_200_ms() -> None:
    chunk = PrefillChunk(None, 1)
    chunk.took(256, 0.39)
    assert chunk.size == 128
    chunk = PrefillChunk(None, 2)
    chunk.took(256, 0.39)
    assert chunk.size == 256, "two layers: 0.4 seconds"


def test_the_rest_of_a_prompt_tells_nothing() -> None:
    chunk = PrefillChunk()
    chunk.took(255, 60.0)
    assert chunk.size == 256


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
