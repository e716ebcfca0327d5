"""From logits to the next token, and to what else it could have been."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.config import SamplingParams
from engine.records import Candidate

NUM_CANDIDATES = 20


@dataclass(frozen=True)
class Choice:
    """The chosen token, the top candidates, and the entropy of the raw distribution in nats."""

    token_id: int
    candidates: tuple[Candidate, ...]
    entropy: float


def choose(logits: torch.Tensor, sampling: SamplingParams, position: int, text_of: Callable[[int], str]) -> Choice:
    """Choose the token that will stand at `position` from logits `[V]`.

    The draw depends on the seed and the position alone, so that going back and stepping again repeats it. NaN logits
    choose nothing sensible; they are reported as non-finite by the caller.
    """
    raw = torch.log_softmax(logits.float(), -1)
    probs = None if sampling.is_greedy else filtered(logits.float().cpu(), sampling)
    if probs is None or not probs.isfinite().all():
        token_id = int(logits.argmax())  # of equal ones the first, as transformers does
    else:
        generator = torch.Generator().manual_seed((sampling.seed * 1_000_003 + position) % 2**63)
        token_id = int(torch.multinomial(probs, 1, generator=generator))
    ids = shown(raw, token_id)
    sampled = [float(i == token_id) for i in ids] if probs is None else probs[ids].tolist()
    entropy = float(torch.special.entr(raw.exp()).sum())
    triples = zip(ids, raw[ids].tolist(), sampled, strict=True)
    candidates = tuple(Candidate(i, text_of(i), lp, math.exp(lp), sp) for i, lp, sp in triples)
    return Choice(token_id, candidates, entropy)


def shown(raw: torch.Tensor, chosen: int) -> list[int]:
    """The most probable tokens, equal ones by their number; the chosen one is among them, however improbable."""
    top = raw.topk(min(NUM_CANDIDATES, raw.shape[0]))
    ranked = dict(zip(top.indices.tolist(), top.values.tolist(), strict=True))
    if chosen not in ranked:
        ranked.popitem()
        ranked[chosen] = float(raw[chosen])
    return sorted(ranked, key=lambda i: (-ranked[i], i))


def filtered(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """Probabilities `[V]` after temperature, then top-k, top-p and min-p, renormalised."""
    scaled = logits / max(sampling.temperature, 1e-4)
    if sampling.top_k is not None and sampling.top_k < scaled.shape[0]:
        floor = scaled.topk(sampling.top_k).values[-1]
        scaled = scaled.masked_fill(scaled < floor, -torch.inf)
    probs = scaled.softmax(-1)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, order = probs.sort(descending=True)
        # a token is dropped when the tokens before it already hold top_p; the first one always stays
        dropped = ordered.cumsum(-1) - ordered >= sampling.top_p
        probs = probs.index_fill(0, order[dropped], 0.0)
    if sampling.min_p:
        probs = probs.masked_fill(probs < sampling.min_p * probs.max(), 0.0)
    return probs / probs.sum()
