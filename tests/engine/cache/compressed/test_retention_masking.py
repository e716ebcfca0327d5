"""Dropping rows gives what a full cache with their columns masked gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.retention import RetentionSpec, layers_that_evict
from engine.spec.sampling import Prompt
from tests.engine.cache.compressed.prompts import finish_prompt, masked_logits
from tests.engine.cache.compressed.rules import RULES, assert_nothing_is_dropped, roomy, session_of
from tests.engine.tiny import model_of


@pytest.mark.parametrize("name", [name for name in RULES if name != "rerotated"])
def test_dropping_rows_is_masking_their_columns(name: str) -> None:
    assert_masked("llama", RULES[name])


@pytest.mark.parametrize("architecture", ["gemma2", "gemma3_text", "gpt_oss", "cohere2", "lfm2"])
@pytest.mark.parametrize("name", ["sinks+window", "h2o", "snapkv", "tova", "knorm"])
def test_in_mixed_models_full_layers_drop_rows_and_the_others_keep_theirs(name: str, architecture: str) -> None:
    assert_masked(architecture, RULES[name])


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3_text"])
@pytest.mark.parametrize(
    "retention",
    [
        RetentionSpec("h2o", layer_budgets=(14, 8)),
        RetentionSpec("tova", layer_budgets=(5, 16), sinks=2),
        RetentionSpec("snapkv", budget=10, window=2, schedule="pyramid"),
        RetentionSpec("keydiff", budget=9, sinks=1, schedule="pyramid"),
    ],
)
def test_layers_with_budgets_of_their_own(architecture: str, retention: RetentionSpec) -> None:
    assert_masked(architecture, retention)


def assert_masked(architecture: str, retention: RetentionSpec) -> None:
    """In float64, where rounding cannot hide a wrong row: the same logits to 1e-10 as the full cache with the dropped
    columns masked, and as many rows in each layer as its budget says."""
    model = model_of(architecture)
    is_double = architecture != "gpt_oss"  # whose experts are multiplied by a kernel without float64
    if is_double:
        model.model.double()
    try:
        session, seq_id = session_of(retention, model)
        dropped_at: dict[int, dict[Any, list[int]]] = {}
        for _ in range(9):
            record = session.step()
            seen = session.sequence(seq_id).num_tokens
            for e in record.evictions:
                for head in (0, 1) if e.kv_head is None else (e.kv_head,):
                    dropped_at.setdefault(seen, {}).setdefault((e.layer, head), []).extend(e.positions.tolist())
        sequence = session.sequence(seq_id)
        newest = session.logits(seq_id)
        assert newest is not None
        assert not is_double or newest.dtype == torch.float64
        dropping = layers_that_evict(model.info.geometry)
        for number, layer in enumerate(dropping):
            rows = session.cache_of(seq_id).rows(layer)
            assert rows is not None
            mine, prompt = retention.at(number, len(dropping), 20), 20
            kept = mine.num_kept(prompt if mine.only_at_prompt_end else sequence.num_tokens)
            assert rows.keys.shape[2] == kept + (sequence.num_tokens - prompt) * mine.only_at_prompt_end
        assert dropped_at
        expected = masked_logits(model, sequence.token_ids[: sequence.num_tokens], 20, dropped_at)
        # soft caps and sink logits are computed in float32, here and in the model's own code
        tolerance = {"gemma2": 1e-5, "gpt_oss": 1e-4}.get(architecture, 1e-10)
        assert float((newest - expected).abs().max()) < tolerance
        full = model.reference_logits(torch.tensor([sequence.token_ids[: sequence.num_tokens]]))[-1]
        assert float((newest - full).abs().max()) > 1e-3, "and it is not the full cache"
    finally:
        model.model.float()


@pytest.mark.parametrize("name", RULES)
def test_a_budget_of_the_whole_context_changes_nothing(name: str) -> None:
    assert_nothing_is_dropped(*session_of(roomy(RULES[name])), *session_of(RetentionSpec()))


def test_sinks_are_turned_to_where_they_would_stand_without_the_gap() -> None:
    """Re-rotated: the same logits as computing sinks and window alone, at positions without a gap, in a one-layer model
    of depth: keys of deeper layers depend on what was dropped, so only the first layer's keys are compared."""
    session, seq_id = session_of(RULES["rerotated"])
    finish_prompt(session)
    for _ in range(5):
        session.step()
    ids = session.sequence(seq_id).token_ids
    held = [0, 1, *range(len(ids) - 10, len(ids))]
    plain = Session(session.model, CacheSpec())
    plain_id = plain.submit(Prompt(token_ids=tuple(ids[i] for i in held)))
    plain.step()
    mine, true = session.cache_of(seq_id).rows(0), plain.cache_of(plain_id).rows(0)
    assert mine is not None
    assert true is not None
    # distances are what attention sees: products of sinks with the window must agree
    one = mine.keys[0, :, :2] @ mine.keys[0, :, 2:].mT
    other = true.keys[0, :, :2] @ true.keys[0, :, 2:].mT
    assert torch.allclose(one, other, atol=1e-3)
