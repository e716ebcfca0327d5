"""What is done to logits before a token is chosen is what transformers' `generate` does with the same config."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessorList

from engine.model.loader import apply_generation_rules
from tests.engine.tiny import model_of

SOURCE, DECODED = [7, 8, 9, 7, 8], [2, 7, 8, 5, 7]  # 7 is followed by 8 in both
RULES: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.7},
    "what the encoder read": {"encoder_repetition_penalty": 1.4},
    "n-grams": {"no_repeat_ngram_size": 2},
    "n-grams of the source": {"encoder_no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[5, 7, 11], [12], [3, 13]]},
    "least length": {"min_length": 6},
    "long enough": {"min_length": 5},
    "least new": {"min_new_tokens": 5},
    "new enough": {"min_new_tokens": 4},
    "first": {"forced_bos_token_id": 40},
    "suppressed": {"suppress_tokens": [20, 21]},
    "several ends": {"min_length": 9, "eos_token_id": [2, 30]},
    "no end": {"min_length": 9, "min_new_tokens": 9, "eos_token_id": None},
}


def expected(given: GenerationConfig, logits: torch.Tensor, decoded: list[int]) -> tuple[torch.Tensor, int]:
    """By the processors that `generate` makes, whose number is told too; one token was there before anything new."""
    model = model_of("bart").model
    model._prepare_special_tokens(given, device="cpu")
    made: LogitsProcessorList = model._get_logits_processor(
        generation_config=given, input_ids_seq_length=1, encoder_input_ids=torch.tensor([SOURCE]), device="cpu"
    )
    return made(torch.tensor([decoded]), logits[None].clone())[0], len(made)


@pytest.mark.parametrize("name", [*RULES, "all"])
@pytest.mark.parametrize("decoded", [DECODED, DECODED[:1], DECODED[:4]], ids=["five", "one", "four"])
def test_logits_are_those_of_generate(name: str, decoded: list[int]) -> None:
    given = {
        "eos_token_id": 2,
        "max_length": 6,
        "decoder_start_token_id": 2,
        "forced_eos_token_id": 2 if name == "all" else None,
    }
    for each in RULES.values() if name == "all" else [RULES[name]]:
        given |= {key: value for key, value in each.items() if name != "all" or key != "eos_token_id"}
    logits = torch.randn(128, generator=torch.Generator().manual_seed(3))
    found = apply_generation_rules(GenerationConfig(**given), logits, SOURCE, decoded, 6)
    own, count = expected(GenerationConfig(**given), logits, decoded)
    assert (found is None) == (count == 0) == (name == "no end")
    if found is not None:
        assert torch.equal(found, own)


def test_the_last_token_is_forced_where_the_text_ends() -> None:
    logits = torch.zeros(128)
    for decoded in (DECODED, DECODED[:4]):
        found = apply_generation_rules(GenerationConfig(forced_eos_token_id=9), logits, SOURCE, decoded, 6)
        assert found is not None
        assert (int(found.argmax()) == 9) == (len(decoded) == 5)


def test_a_config_that_asks_for_nothing_changes_nothing() -> None:
    assert apply_generation_rules(GenerationConfig(), torch.zeros(128), SOURCE, DECODED, 6) is None
