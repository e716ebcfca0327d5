"""The distribution of the next token: its most probable tokens, measured on the device and made into `Candidate`s on
the host; and the divergence between two distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy.typing as npt
import torch

from engine.cache.stacking import stacked_view
from engine.device import HostNumber
from engine.errors import InputError
from engine.wire.records import Candidate

NUM_CANDIDATES = 20
GROUP = 256
NO_TOKEN = -1
IDS = "candidates.ids"  # name of the measured ids of the most probable tokens
LOWEST = -1e4  # replaces log 0, as -inf times 0 is NaN


@dataclass(frozen=True, eq=False)
class Sample:
    """A chosen next token, on the device: `chosen`, the log-probabilities of all tokens `[V]`, and the probabilities
    `[V]` from which it was drawn (None: the largest was taken). `is_choice`, also on the device: whether any token
    could be chosen at all (None: certainly)."""

    chosen: torch.Tensor
    logprobs: torch.Tensor
    probs: torch.Tensor | None
    is_choice: torch.Tensor | None = None

    def send(self) -> None:
        """Start to copy the token to the host; work queued on the device after this does not delay it."""
        _ = self._returning

    @cached_property
    def _returning(self) -> HostNumber:
        return HostNumber(self.chosen if self.is_choice is None else self.chosen.where(self.is_choice, NO_TOKEN))

    @cached_property
    def token_id(self) -> int:
        """The token on the host, which waits for it. Raises `InputError` where every token is banned."""
        if (token_id := int(self._returning)) == NO_TOKEN:
            raise InputError("Every token is banned, so none can be chosen: end the bias of logits.")
        return token_id

    @cached_property
    def is_finite(self) -> bool:
        """Whether the logits were numbers: one NaN or +infinity makes every log-probability NaN, and then token 0 is
        chosen. So only for token 0 the device has to be read again."""
        return self.token_id != 0 or not bool(self.logprobs[0].isnan())


@dataclass(frozen=True)
class NextToken:
    """The distribution of the next token: the most probable tokens, and the entropy in nats, NaN if a logit is not a
    number."""

    candidates: tuple[Candidate, ...]
    entropy: float


def candidate_measures(samples: Sequence[Sample]) -> list[dict[str, torch.Tensor]]:
    """For each sequence: the largest log-probabilities with their ids, that of the chosen token, and the entropy;
    computed for all sequences at once.

    Shapes depend on the vocabulary only, and nothing is read by the host.
    """
    if not samples:
        return []
    likely = likely_tokens(stacked_view([one.logprobs for one in samples]))
    own = chosen_measures(samples, list(likely[IDS]))
    return [{name: numbers[n] for name, numbers in likely.items()} | mine for n, mine in enumerate(own)]


def likely_tokens(logprobs: torch.Tensor) -> dict[str, torch.Tensor]:
    """For log-probabilities `[B, V]`: the largest of each row with their ids, `[B, N]`, and its entropy `[B]`, NaN if a
    logit is not a number, for then no log-probability is one."""
    ids, largest_ones = largest(logprobs, min(NUM_CANDIDATES, logprobs.shape[1]))
    entropy = torch.linalg.vecdot(logprobs.exp(), logprobs.clamp_min(LOWEST)).neg_()
    return {IDS: ids.int(), "candidates.logprobs": largest_ones, "candidates.entropy": entropy}


def chosen_measures(samples: Sequence[Sample], likely_ids: Sequence[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """The log-probability of each sequence's chosen token, and the probabilities with which it and the likely tokens
    were drawn."""
    if not samples:
        return []
    logprobs, chosen = (stacked_view([getattr(one, name) for one in samples]) for name in ("logprobs", "chosen"))
    found = [{"candidates.own": own} for own in logprobs.gather(1, chosen[:, None])[:, 0]]
    for mine, one, ids in zip(found, samples, likely_ids, strict=True):
        if one.probs is not None:
            mine["candidates.probs"] = one.probs[torch.cat([ids, one.chosen.view(1).int()])]
    return found


def next_token(measured: Mapping[str, npt.NDArray[Any]], token_id: int, text_of: Callable[[int], str]) -> NextToken:
    """The measured numbers as a `NextToken`: in order of probability, equal ones by id. The chosen token is included,
    however improbable."""
    ids, logprobs = measured[IDS].tolist(), measured["candidates.logprobs"].tolist()
    own_logprob, entropy = float(measured["candidates.own"]), float(measured["candidates.entropy"])
    probs = measured.get("candidates.probs")
    sampled = [float(i == token_id) for i in ids] if probs is None else probs[:-1].tolist()
    own = 1.0 if probs is None else float(probs[-1])
    known = dict(zip(ids, zip(logprobs, sampled, strict=True), strict=True))
    if token_id not in known:
        known.popitem()
        known[token_id] = own_logprob, own
    order = sorted([(-logprob, i, share) for i, (logprob, share) in known.items()])
    candidates = tuple([Candidate(i, text_of(i), -cost, math.exp(-cost), share) for cost, i, share in order])
    # a certain token gives -0.0; NaN is kept, because it shows bad logits
    return NextToken(candidates, 0.0 if entropy <= 0.0 else entropy)


def largest(raw: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices and values `[B, count]` of the largest numbers in each row of `[B, V]`, exactly.

    They are in those `count` groups that have the largest maxima. Searching only these is five times faster than
    searching a whole vocabulary, which would take as long as a layer.
    """
    if raw.shape[1] <= GROUP * count:
        top = raw.topk(count)
        return top.indices, top.values
    missing = -raw.shape[1] % GROUP
    padded = torch.nn.functional.pad(raw, (0, missing), value=-torch.inf) if missing else raw
    groups = padded.view(len(raw), -1, GROUP)
    chosen = groups.amax(2).topk(count).indices
    top = groups.gather(1, chosen[:, :, None].expand(-1, -1, GROUP)).flatten(1).topk(count)
    return chosen.gather(1, top.indices // GROUP) * GROUP + top.indices % GROUP, top.values


def kl_divergence(before: torch.Tensor, after: torch.Tensor) -> float:
    """KL(before || after) in nats of the distributions of two rows of logits `[V]`, computed in their dtype; NaN if one
    of them has a NaN or a logit of +Inf. Tokens without probability before do not count."""
    expected, found = before.log_softmax(-1), after.log_softmax(-1)
    kl = float(torch.where(expected == -torch.inf, 0.0, expected.exp() * (expected - found)).sum())
    return kl if math.isnan(kl) else max(0.0, kl)
