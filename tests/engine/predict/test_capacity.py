"""How many tokens fit: what is said beforehand is what a session then takes, and where a context never fills."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from engine.errors import InputError
from engine.model.loader import load
from engine.predict.capacity import most_tokens
from engine.session.session import Session
from engine.spec.cache import CacheSpec, cache_preset, tuned
from engine.spec.model import ModelSpec
from engine.spec.sampling import Prompt
from tests.engine.tiny import config_dict, model_of, prompt_ids

SPECS = {
    "growing": (CacheSpec(), 128),
    "static": (CacheSpec("static", max_length=20), 20),
    "static, automatic": (CacheSpec("static"), 128),
    "small pool": (CacheSpec("paged", page_size=8, num_pages=4), 24),
    "large pool": (CacheSpec("paged", page_size=8), 128),
}


@pytest.mark.parametrize("name", SPECS)
def test_the_longest_prompt_is_taken_and_one_more_is_not(name: str) -> None:
    spec, expected = SPECS[name]
    model = model_of("llama")
    limit = most_tokens(spec, model.info.geometry)
    assert limit == expected
    session = Session(model, spec)
    assert session.submit(Prompt(token_ids=prompt_ids(limit))) == 0
    with pytest.raises(InputError, match=f"{limit + 1:,} tokens"):
        session.submit(Prompt(token_ids=prompt_ids(limit + 1)))


def test_a_window_goes_on_where_a_context_is_full() -> None:
    model = model_of("llama")
    assert model.info.goes_beyond_context
    session = Session(model, CacheSpec(), prefill_chunk=128)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(127)))
    session.step()
    session.step()
    assert session.sequence(seq_id).stop == "context full"
    session.set_cache(cache_preset("tova").spec)
    assert session.sequence(seq_id).stop == "context full"
    session.set_cache(tuned(cache_preset("streamingllm").spec, window=20))
    assert session.sequence(seq_id).stop is None
    session.force(seq_id, prompt_ids(12, seed=1))
    for _ in range(12):
        session.step()
    assert session.sequence(seq_id).num_tokens == 140
    assert session.sequence(seq_id).stop in (None, "end of text")
    with pytest.raises(InputError, match="holds 128"):
        session.set_cache(CacheSpec())


def test_rows_beyond_the_context_are_those_of_a_model_with_a_longer_one(tmp_path: Path) -> None:
    """The length in a config is no weight: with a longer one the same tokens give the same logits, bit for bit."""
    ids, found = prompt_ids(160), []
    for length in (128, 512):
        config = tmp_path / f"llama-{length}.json"
        config.write_text(json.dumps({**config_dict("llama"), "max_position_embeddings": length}))
        model = load(ModelSpec(f"shape:{config}", num_threads=1))
        session = Session(model, tuned(cache_preset("streamingllm").spec, window=20), prefill_chunk=128)
        seq_id = session.submit(Prompt(token_ids=ids[:100]))
        session.step()
        session.force(seq_id, ids[100:])
        for _ in range(60):
            session.step()
        assert session.sequence(seq_id).token_ids == list(ids)
        found.append(session.logits(seq_id))
    assert torch.equal(*found)


def test_learned_positions_end_where_the_model_ends() -> None:
    session = Session(model_of("gpt2"), tuned(cache_preset("sliding").spec, window=20), prefill_chunk=128)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(128)))
    session.step()
    assert session.sequence(seq_id).stop == "context full"
