"""Applies the logits processors that transformers' `generate` uses where the model's generation config asks for them.

Encoder-decoders depend on it: a forced first token names the language, a forced last one ends the text, and the
decoder's start token must not be generated again. The processors are transformers' own, in its order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    LogitsProcessor,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
)


def apply_generation_rules(
    generation: Any, logits: torch.Tensor, source: Sequence[int], decoded: Sequence[int], max_length: int
) -> torch.Tensor | None:
    """Logits `[V]` of the token after `decoded`, processed as `generate` does for a text of at most `max_length`
    tokens; None where the generation config asks for nothing."""
    read, ids = (torch.tensor([list(part)], device=logits.device) for part in (source, decoded))
    rules = LogitsProcessorList(processors(generation, read, max_length))
    return rules(ids, logits[None].float().clone())[0] if rules else None


def processors(generation: Any, source: torch.Tensor, max_length: int) -> list[LogitsProcessor]:
    """The processors that a generation config asks for, given the ids `[1, S]` that the encoder read."""
    device, found = source.device, list[LogitsProcessor]()

    def asked(name: str, nothing: object = 0) -> Any:
        value = getattr(generation, name, None)
        return None if value == nothing else value

    ends = asked("eos_token_id")
    end = None if ends is None else torch.tensor([ends] if isinstance(ends, int) else list(ends), device=device)
    if (penalty := asked("encoder_repetition_penalty", 1.0)) is not None:
        found.append(EncoderRepetitionPenaltyLogitsProcessor(penalty, source))
    if (penalty := asked("repetition_penalty", 1.0)) is not None:
        found.append(RepetitionPenaltyLogitsProcessor(penalty))
    if (size := asked("no_repeat_ngram_size")) is not None:
        found.append(NoRepeatNGramLogitsProcessor(size))
    if (size := asked("encoder_no_repeat_ngram_size")) is not None:
        found.append(EncoderNoRepeatNGramLogitsProcessor(size, source))
    if (words := asked("bad_words_ids", [])) is not None:
        found.append(NoBadWordsLogitsProcessor(words, end))
    if (length := asked("min_length")) is not None and end is not None:
        found.append(MinLengthLogitsProcessor(length, end, device=str(device)))
    if (length := asked("min_new_tokens")) is not None and end is not None:
        found.append(MinNewTokensLengthLogitsProcessor(1, length, end, device=str(device)))
    if (first := asked("forced_bos_token_id", ())) is not None:
        found.append(ForcedBOSTokenLogitsProcessor(first))
    if (last := asked("forced_eos_token_id", ())) is not None:
        found.append(ForcedEOSTokenLogitsProcessor(max_length, last, device=str(device)))
    if (banned := asked("suppress_tokens", [])) is not None:
        found.append(SuppressTokensLogitsProcessor(banned, device=str(device)))
    return found
