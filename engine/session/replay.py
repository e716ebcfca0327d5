"""Filling a cache once more by the forwards that filled it first, so that it comes out bit for bit the same."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.cache.attention_probe import Probe
from engine.cache.sequence_cache import SequenceCache
from engine.history.journal import Move
from engine.model.loader import LoadedModel
from engine.session.sequence import Sequence
from engine.spec.cache import CacheSpec


def run(
    model: LoadedModel, cache: SequenceCache, fed: list[int], num_new: int, probe: Probe | None, all_logits: bool
) -> torch.Tensor:
    """Feed one sequence whose cache has room; logits `[T or 1, V]`."""
    cache.plan_forward(num_new)
    ids = torch.tensor([fed], device=model.device)
    return model.forward(ids, cache.live, probe, all_logits)[0]


def refill(
    model: LoadedModel,
    sequence: Sequence,
    cache: SequenceCache,
    fed_lengths: list[int],
    moves: list[Move],
    make: Callable[[CacheSpec], SequenceCache],
) -> None:
    """Fill a cache with what a sequence had in it: by the forwards that filled it first, and through every mode that it
    was converted from in between, which `make` makes once more. `fed_lengths` are the lengths after each forward."""
    stages = moves[:-1] if moves and moves[-1].cache == cache.spec else []
    before: SequenceCache | None = None
    for number, move in enumerate(stages):
        stop = moves[number + 1].num_tokens
        stage = make(move.cache)
        start = 0 if before is None else convert(before, stage, sequence, move.num_tokens)
        feed(model, sequence, stage, fed_lengths, start, stop)
        before = stage
    cache.clear()
    start = 0 if before is None else convert(before, cache, sequence, moves[-1].num_tokens)
    feed(model, sequence, cache, fed_lengths, start, sequence.num_tokens)


def convert(before: SequenceCache, cache: SequenceCache, sequence: Sequence, num_tokens: int) -> int:
    """Take the rows of another mode over, as a change of the mode does; returns how many tokens that were: 0 where the
    rows have to be computed anew."""
    if not cache.take_over(before):
        return 0
    cache.condense(num_tokens, sequence.num_prompt_tokens, None)
    cache.commit(num_tokens)
    return num_tokens


def feed(
    model: LoadedModel, sequence: Sequence, cache: SequenceCache, fed_lengths: list[int], start: int, stop: int
) -> None:
    """Repeat the forwards of a sequence from `start` to `stop` tokens."""
    for length in lengths_to_feed(cache.spec, sequence.num_prompt_tokens, fed_lengths, stop):
        if length > start:
            cache.begin(length - start)
            probe = cache.probe(False)
            fed = sequence.token_ids[:length] if cache.spec.recomputes else sequence.token_ids[start:length]
            run(model, cache, fed, length - start, probe, False)
            cache.condense(length, sequence.num_prompt_tokens, probe)
            cache.commit(length)
            cache.settle()
            start = length


def lengths_to_feed(spec: CacheSpec, prompt: int, fed_lengths: list[int], stop: int) -> list[int]:
    """The lengths after each forward, ascending, up to `stop` tokens.

    Where rows are coded or dropped from the end of the prompt on, that is one of them, and behind it come single
    tokens, since rows are dropped between steps. transformers' quantised cache takes the prompt at once.
    """
    if spec.recomputes:
        return [stop] if stop else []  # every forward begins anew: the last one makes all rows
    lengths = [n for n in fed_lengths if n <= stop]
    is_whole = spec.layout == "quantized"
    if is_whole or (spec.is_compact and prompt < stop):
        before = [] if is_whole else [n for n in lengths if n < prompt]
        lengths = [n for n in (*before, *range(prompt, stop + 1)) if n <= stop]
    return lengths if lengths[-1:] == [stop] or not stop else [*lengths, stop]
