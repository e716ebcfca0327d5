"""From logits to the next token, and to what else it could have been."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from engine.errors import InputError
from engine.spec.sampling import LogitBias, SamplingParams
from engine.wire.records import Candidate

NUM_CANDIDATES = 20
GROUP = 256


@dataclass(frozen=True)
class SampledToken:
    """The chosen token, the top candidates, and the raw distribution: entropy in nats, log-probabilities `[V]`."""

    token_id: int
    candidates: tuple[Candidate, ...]
    entropy: float
    logprobs: torch.Tensor = field(compare=False, repr=False)


def choose(
    logits: torch.Tensor,
    sampling: SamplingParams,
    position: int,
    text_of: Callable[[int], str],
    ruled: torch.Tensor | None = None,
) -> SampledToken:
    """Choose the token that will stand at `position` from logits `[V]`.

    The draw depends on the seed and the position alone, so that going back and stepping again repeats it. NaN logits
    choose nothing sensible; they are reported as non-finite by the caller. Candidates are those of the raw logits; what
    steers the choice shows in their `sampled_prob`. `ruled` are the logits as rules of the model make them, if it has
    any.
    """
    raw = torch.log_softmax(logits.float(), -1)
    wanted, is_steered = (
        steered(logits if ruled is None else ruled, sampling.bias),
        bool(sampling.bias or ruled is not None),
    )
    probs = None if sampling.is_greedy else filtered(wanted.cpu(), sampling)
    top = largest(raw, min(NUM_CANDIDATES, raw.shape[0]))
    if probs is None or not probs.isfinite().all():
        best = largest(wanted, min(NUM_CANDIDATES, raw.shape[0])) if is_steered else top
        token_id = first_of_equals(wanted if is_steered else raw, best)
    else:
        generator = torch.Generator().manual_seed((sampling.seed * 1_000_003 + position) % 2**63)
        token_id = int(torch.multinomial(probs, 1, generator=generator))
    logprobs = shown(raw, top, token_id)
    ids = list(logprobs)
    sampled = [float(i == token_id) for i in ids] if probs is None else probs[ids].tolist()
    triples = zip(ids, logprobs.values(), sampled, strict=True)
    candidates = tuple(Candidate(i, text_of(i), lp, math.exp(lp), sp) for i, lp, sp in triples)
    return SampledToken(token_id, candidates, entropy_of(raw), raw)


def steered(logits: torch.Tensor, bias: LogitBias | None) -> torch.Tensor:
    """Logits `[V]` in float32 with what is added to them; minus infinity where a token is banned."""
    logits = logits.float()
    if bias is None:
        return logits
    made = logits.clone()
    for token_id, added in bias.biases:
        made[token_id] += added
    if bias.only:
        only = torch.tensor(bias.only, device=made.device)
        made = torch.full_like(made, -torch.inf).index_copy(0, only, made[only])
    if bias.banned:
        made[list(bias.banned)] = -torch.inf
    if bool((made == -torch.inf).all()):
        raise InputError("Every token is banned, so none can be chosen: end the bias of logits.")
    return made


def entropy_of(raw: torch.Tensor) -> float:
    """Entropy in nats of log-probabilities `[V]`."""
    probs = raw.exp()
    entropy = -float(torch.dot(probs, raw))
    # where p is 0, log p must not be -inf; bounding all of a vocabulary only then spares every other step a copy of it
    entropy = entropy if entropy == entropy else -float(torch.dot(probs, raw.clamp_min(-1e4)))
    return 0.0 if entropy <= 0.0 else entropy  # a token that is certain gives -0.0; NaN stays, it tells of bad logits


def largest(raw: torch.Tensor, count: int) -> dict[int, float]:
    """The `count` largest values of `[V]` by index, exactly.

    They lie in those `count` groups that have the largest maxima: looking there only is five times faster than a search
    of a whole vocabulary, which would cost as much as a layer.
    """
    if raw.shape[0] <= GROUP * count:
        top = raw.topk(count)
        return dict(zip(top.indices.tolist(), top.values.tolist(), strict=True))
    missing = -raw.shape[0] % GROUP
    groups = (torch.nn.functional.pad(raw, (0, missing), value=-torch.inf) if missing else raw).view(-1, GROUP)
    chosen = groups.amax(1).topk(count).indices
    top = groups[chosen].flatten().topk(count)
    firsts = [group * GROUP for group in chosen.tolist()]
    indices = [firsts[place // GROUP] + place % GROUP for place in top.indices.tolist()]
    return dict(zip(indices, top.values.tolist(), strict=True))


def first_of_equals(raw: torch.Tensor, top: dict[int, float]) -> int:
    """The index of the largest value, of equal ones the first, as transformers' argmax has it."""
    best = max(top.values())
    equals = [index for index, value in top.items() if value == best]
    return min(equals) if 0 < len(equals) < len(top) else int(raw.argmax())


def shown(raw: torch.Tensor, top: dict[int, float], chosen: int) -> dict[int, float]:
    """Log-probabilities of the most probable tokens, in order, equal ones by their number; the chosen one is among
    them, however improbable."""
    ranked = dict(top)
    if chosen not in ranked:
        ranked.popitem()
        ranked[chosen] = float(raw[chosen])
    return {i: ranked[i] for i in sorted(ranked, key=lambda i: (-ranked[i], i))}


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
