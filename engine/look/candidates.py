"""The most probable next tokens: found where the logits are, told as `Candidate`s once they have left the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy.typing as npt
import torch

from engine.cache.stacking import stacked_view
from engine.errors import InputError
from engine.to_device import Returning
from engine.wire.records import Candidate

NUM_CANDIDATES = 20
GROUP = 256
NO_TOKEN = -1
IDS = "candidates.ids"  # the name of the most probable tokens among what is measured
LOWEST = -1e4  # in place of log 0, whose product with 0 is no number


@dataclass(frozen=True, eq=False)
class Sample:
    """The `chosen` token, a number on the device, the log-probabilities of all `[V]`, and the probabilities `[V]` that
    it was drawn from (None: it was the largest). `is_choice`, on the device as well: whether any token could be chosen
    (None: some can)."""

    chosen: torch.Tensor
    logprobs: torch.Tensor
    probs: torch.Tensor | None
    is_choice: torch.Tensor | None = None

    def send(self) -> None:
        """Begin to bring the token to the host: nothing that the device is asked for after this is waited for."""
        _ = self._returning

    @cached_property
    def _returning(self) -> Returning:
        return Returning(self.chosen if self.is_choice is None else self.chosen.where(self.is_choice, NO_TOKEN))

    @cached_property
    def token_id(self) -> int:
        """The same, once the host has waited for it. Raises `InputError` where every token is banned."""
        if (token_id := int(self._returning)) == NO_TOKEN:
            raise InputError("Every token is banned, so none can be chosen: end the bias of logits.")
        return token_id

    @cached_property
    def is_finite(self) -> bool:
        """Whether the token was chosen by numbers: one NaN or +infinity among the logits makes every log-probability
        NaN, and token 0 is chosen then. So nothing more is read from the device for any other token."""
        return self.token_id != 0 or not bool(self.logprobs[0].isnan())


@dataclass(frozen=True)
class NextToken:
    """What could come next: the most probable tokens, the entropy in nats, and how many logits are not finite."""

    candidates: tuple[Candidate, ...]
    entropy: float
    num_non_finite: int


def candidate_measures(samples: Sequence[Sample]) -> list[dict[str, torch.Tensor]]:
    """Of the log-probabilities of each sequence the largest with their ids, what the chosen token has, entropy and the
    number of those that are not finite; of all sequences at once.

    Shapes depend on the vocabulary alone, and nothing is read by the host.
    """
    if not samples:
        return []
    likely = likely_tokens(stacked_view([one.logprobs for one in samples]))
    own = chosen_measures(samples, list(likely[IDS]))
    return [{name: numbers[n] for name, numbers in likely.items()} | mine for n, mine in enumerate(own)]


def likely_tokens(logprobs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of log-probabilities `[B, V]` the largest of each row with their ids, `[B, N]`, and its entropy and the number of
    those that are not finite, `[B, 2]`."""
    ids, largest_ones = largest(logprobs, min(NUM_CANDIDATES, logprobs.shape[1]))
    entropy = -torch.linalg.vecdot(logprobs.exp(), logprobs.clamp_min(LOWEST))
    # a number less itself is 0, or NaN: a seventh of the time of `isfinite`
    bad = (logprobs - logprobs).ne_(0).sum(1)
    return {
        IDS: ids.int(),
        "candidates.logprobs": largest_ones,
        "candidates.numbers": torch.stack([entropy, bad], 1),
    }


def chosen_measures(samples: Sequence[Sample], likely_ids: Sequence[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """What the chosen token of each sequence has, and with which probabilities it and the likely ones were drawn."""
    if not samples:
        return []
    logprobs, chosen = (stacked_view([getattr(one, name) for one in samples]) for name in ("logprobs", "chosen"))
    found = [{"candidates.own": own} for own in logprobs.gather(1, chosen[:, None])[:, 0]]
    for mine, one, ids in zip(found, samples, likely_ids, strict=True):
        if one.probs is not None:
            mine["candidates.probs"] = one.probs[torch.cat([ids, one.chosen.view(1).int()])]
    return found


def next_token(measured: Mapping[str, npt.NDArray[Any]], token_id: int, text_of: Callable[[int], str]) -> NextToken:
    """What was measured, in order of probability, equal ones by their number; the chosen token is among them, however
    improbable."""
    ids, logprobs = measured[IDS].tolist(), measured["candidates.logprobs"].tolist()
    own_logprob, (entropy, num_non_finite) = float(measured["candidates.own"]), measured["candidates.numbers"].tolist()
    probs = measured.get("candidates.probs")
    sampled = [float(i == token_id) for i in ids] if probs is None else probs[:-1].tolist()
    own = 1.0 if probs is None else float(probs[-1])
    known = dict(zip(ids, zip(logprobs, sampled, strict=True), strict=True))
    if token_id not in known:
        known.popitem()
        known[token_id] = own_logprob, own
    order = sorted(known, key=lambda i: (-known[i][0], i))
    candidates = tuple(Candidate(i, text_of(i), known[i][0], math.exp(known[i][0]), known[i][1]) for i in order)
    # a token that is certain gives -0.0; NaN stays, it tells of bad logits
    return NextToken(candidates, 0.0 if entropy <= 0.0 else entropy, int(num_non_finite))


def largest(raw: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices and values `[B, count]` of the largest of each row of `[B, V]`, exactly.

    They lie in those `count` groups that have the largest maxima: looking there only is five times faster than a search
    of a whole vocabulary, which would cost as much as a layer.
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
