"""Samples the next token of a sequence again after its logits, bias or sampling have changed."""

from __future__ import annotations

from engine.model.text import TokenTexts
from engine.session.live import LiveSequence
from engine.session.mode import CacheMode
from engine.session.sampler import SampledToken, choose


def choose_again(live: LiveSequence, mode: CacheMode, text_of: TokenTexts) -> SampledToken | None:
    """Sample again from the present logits; a forced token stays the next one. None where there are no logits or the
    prompt is not read yet."""
    sequence, count = live.sequence, live.sequence.num_tokens
    if live.logits is None or sequence.is_prefilling:
        return None
    ruled = mode.model.apply_generation_rules(
        live.logits, sequence.token_ids[:count], sequence.num_prompt_tokens, sequence.sampling.max_new_tokens
    )
    choice = choose(live.logits, sequence.sampling, count, text_of, ruled)
    if sequence.sampled_is_forced:
        return choice
    after = mode.stop_after(sequence, choice, live.cache)
    stop = "stopped" if sequence.stop == "stopped" else after
    live.sequence = sequence.chosen(choice.token_id, stop)
    return choice
