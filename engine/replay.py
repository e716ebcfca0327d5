"""Filling a cache once more by the forwards that filled it first, so that it comes out bit for bit the same."""

from __future__ import annotations

import torch

from engine.cache.adapter import SequenceCache
from engine.cache.attention_probe import Probe
from engine.cache.paged import PagedCache
from engine.model.loader import LoadedModel
from engine.sequence import Sequence


def run(
    model: LoadedModel, cache: SequenceCache, fed: list[int], num_new: int, probe: Probe | None, all_logits: bool
) -> torch.Tensor:
    """Feed one sequence whose cache has room; logits `[T or 1, V]`."""
    if isinstance(cache, PagedCache):
        cache.store.plan([cache], num_new)
    ids = torch.tensor([fed], device=model.device)
    return model.forward(ids, cache.live, probe, all_logits)[0]


def replay(model: LoadedModel, sequence: Sequence, cache: SequenceCache, fed_lengths: list[int]) -> None:
    """Repeat the forwards of a sequence into a cache, from its first token to where it stands. `fed_lengths` are the
    lengths it had after each."""
    cache.clear()
    start = 0
    for stop in lengths_to_replay(sequence, cache, fed_lengths):
        cache.begin(stop - start)
        probe = cache.probe(False)
        run(model, cache, sequence.token_ids[start:stop], stop - start, probe, False)
        cache.condense(stop, sequence.num_prompt_tokens, probe)
        cache.commit(stop)
        start = stop


def lengths_to_replay(sequence: Sequence, cache: SequenceCache, fed_lengths: list[int]) -> list[int]:
    """The lengths after each forward, ascending, up to the tokens that a sequence has.

    Where rows are coded or dropped from the end of the prompt on, that is one of them, and behind it come single
    tokens, since rows are dropped between steps. transformers' quantised cache takes the prompt at once.
    """
    prompt, num_tokens = sequence.num_prompt_tokens, sequence.num_tokens
    lengths = [n for n in fed_lengths if n <= num_tokens]
    is_whole = cache.spec.layout == "quantized"
    if is_whole or (cache.spec.is_compact and prompt < num_tokens):
        before = [] if is_whole else [n for n in lengths if n < prompt]
        lengths = [n for n in (*before, *range(prompt, num_tokens + 1)) if n <= num_tokens]
    return lengths if lengths[-1:] == [num_tokens] or not num_tokens else [*lengths, num_tokens]
