"""Every architecture in 16 bits: the cache against the uncached forward, within what the table of rounding allows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.analysis.reference import first_wrong_row, parity, reference
from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.model.attention import NAME as ATTENTION
from engine.session.commands import first_ids
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.sampling import Prompt
from tests.effort import effort
from tests.engine.tiny import CONFIGS, ENCODER_DECODERS, config_dict, model_of, prompt_ids, random_model

HALF = ("bfloat16", "float16")
EVERYWHERE = [(name, dtype) for name in (*CONFIGS, *ENCODER_DECODERS) for dtype in HALF]


# by default each architecture in one of the two, in turn
@pytest.mark.parametrize(("architecture", "dtype"), effort([*EVERYWHERE[::4], *EVERYWHERE[3::4]], EVERYWHERE))
def test_a_cache_stays_within_rounding_in_16_bits(architecture: str, dtype: str) -> None:
    model = model_of.__wrapped__(architecture, dtype)
    assert model.info.dtype == dtype
    prompt = tuple(first_ids(model, Prompt(token_ids=prompt_ids(21))))
    truth = reference(model, prompt, 0, forced=prompt_ids(5, 1))
    for name in ("growing", "paged"):
        try:
            found = parity(model, name, PRESETS[name].spec, truth, 64)
        except InputError:
            assert name == "paged", "every model takes a cache that grows"
            continue
        assert found.passes, found
        assert found.steps == 5


@pytest.mark.parametrize("dtype", HALF)
def test_a_row_that_is_a_little_off_is_beyond_rounding(dtype: str) -> None:
    """By a twentieth: in 16 bits the table is no formality."""
    model = model_of.__wrapped__("llama", dtype)
    sessions = [Session(model, CacheSpec(layout)) for layout in ("growing", "dynamic")]
    for session in sessions:
        session.submit(Prompt(token_ids=prompt_ids(9)))
        session.step()
    mine, its = (session.cache_of(0) for session in sessions)
    layers = model.info.geometry.attention_layers
    assert first_wrong_row(layers, mine, its, dtype) is None
    rows = mine.rows(1)
    assert rows is not None
    with torch.inference_mode():
        rows.values[0, 1, 4] *= 1.05
    wrong = first_wrong_row(layers, mine, its, dtype)
    assert wrong is not None
    assert (wrong.layer, wrong.tensor, wrong.position) == (1, "values", 4)


@pytest.mark.parametrize("dtype", HALF)
def test_what_large_weights_do_beyond_the_table_is_another_rounding_of_capped_scores(dtype: str) -> None:
    """T5Gemma caps scores in 16 bits, and attention here in float32: with weights this large its own forward departs
    further than the table says. From one forward with the same attention nothing departs."""
    model = random_model(config_dict("t5gemma"), 0.4, dtype)
    session = Session(model, CacheSpec())
    seq_id = session.submit(Prompt(token_ids=prompt_ids(19)))
    session.force(seq_id, prompt_ids(4, 5))
    for _ in range(4):
        session.step()
    mine, sequence = session.cache_of(seq_id), session.sequence(seq_id)
    ids, layers = torch.tensor([sequence.token_ids[: sequence.num_tokens]]), model.info.geometry.attention_layers
    departs = []
    for attention in (model.native_attention, ATTENTION):
        truth = SequenceCache(CacheSpec(), model.model.config, model.max_length, mine.num_source)
        replace(model, native_attention=attention).reference_logits(ids, truth.model_cache, [sequence.num_tokens - 1])
        departs.append(first_wrong_row(layers, mine, truth, dtype) is not None)
    assert departs == [True, False]
