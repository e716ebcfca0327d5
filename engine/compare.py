"""Parity: a cache mode against the model without any cache, on the same tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.config import CacheSpec, Prompt, cache_preset
from engine.model.loader import LoadedModel
from engine.session import Session

TOLERANCE = 1e-3


@dataclass(frozen=True)
class Reference:
    """Greedy tokens after a prompt, and the logits `[steps, V]` that chose them, from forwards without a cache."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logits: torch.Tensor


@dataclass(frozen=True)
class Parity:
    """How a cache mode departs from the uncached forward, over all steps; `first_divergence` is the first step whose
    greedy token differs, None if none does."""

    cache: str
    lossless: bool
    max_abs_logit_diff: float
    mean_kl: float
    top1_agreement: float
    first_divergence: int | None

    @property
    def passes(self) -> bool:
        """A lossless mode stays within 1e-3 and changes no greedy token; others are measured, not judged."""
        return not self.lossless or (self.max_abs_logit_diff <= TOLERANCE and self.first_divergence is None)


def reference(model: LoadedModel, prompt_ids: tuple[int, ...], num_steps: int) -> Reference:
    """Greedy decoding by recomputing everything, through the model's own attention: nothing of ours takes part."""
    ids = list(prompt_ids)
    logits: list[torch.Tensor] = []
    for _ in range(num_steps):
        logits.append(model.reference_logits(torch.tensor([ids], device=model.device))[-1].float().cpu())
        ids.append(int(logits[-1].argmax()))
    return Reference(prompt_ids, tuple(ids[len(prompt_ids) :]), torch.stack(logits))


def session_logits(session: Session, prompt_ids: tuple[int, ...], forced: tuple[int, ...]) -> torch.Tensor:
    """Logits `[steps, V]` of a session that is fed the prompt and then the forced tokens."""
    seq_id = session.submit(Prompt(token_ids=prompt_ids))
    session.force(seq_id, forced)
    logits: list[torch.Tensor] = []
    while len(logits) < len(forced):
        session.step()
        if not session.sequence(seq_id).is_prefilling:
            newest = session.logits(seq_id)
            assert newest is not None
            logits.append(newest.float().cpu())
    return torch.stack(logits)


def parity(model: LoadedModel, name: str, spec: CacheSpec, yardstick: Reference, prefill_chunk: int) -> Parity:
    """One mode against the yardstick."""
    session = Session(model, spec, prefill_chunk=prefill_chunk)
    logits = session_logits(session, yardstick.prompt_ids, yardstick.token_ids)
    return measure(name, cache_preset(name).lossless, logits, yardstick.logits)


def measure(name: str, lossless: bool, logits: torch.Tensor, yardstick: torch.Tensor) -> Parity:
    """Compare logits `[steps, V]`. Anything not finite counts as infinitely far."""
    difference = (logits - yardstick).abs()
    # a vocabulary may be padded with -inf on both sides, which differs by nothing
    difference = difference.masked_fill(logits == yardstick, 0.0).nan_to_num(torch.inf, torch.inf)
    expected = yardstick.log_softmax(-1)
    kl = torch.nn.functional.kl_div(logits.log_softmax(-1), expected, log_target=True, reduction="none").sum(-1)
    agrees = logits.argmax(-1) == yardstick.argmax(-1)
    departures = (~agrees).nonzero()
    return Parity(
        cache=name,
        lossless=lossless,
        max_abs_logit_diff=float(difference.max()),
        mean_kl=max(0.0, float(kl.mean())),
        top1_agreement=float(agrees.float().mean()),
        first_divergence=int(departures[0]) if len(departures) else None,
    )
