"""Parity: a cache mode against the model without any cache, on the same tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from engine.analysis.rounding import LOGIT_TOLERANCE, WrongRow, first_wrong_row, largest
from engine.cache.sequence_cache import SequenceCache
from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.sampling import Prompt
from engine.spec.tuning import fitted


@dataclass(frozen=True)
class Reference:
    """Greedy tokens after a prompt, the logits `[steps, V]` that chose them, and the K and V of all but the last of
    those tokens, from forwards without a cache."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logits: torch.Tensor
    cache: SequenceCache


@dataclass(frozen=True)
class Parity:
    """How a cache mode departs from the uncached forward, over all `steps`.

    `first_divergence` is the first step whose greedy token differs, None if none does; where two tokens are nearly
    equal, rounding alone may swap them. `tolerance` is what rounding may do to a logit in this dtype, `wrong_row` the
    first row of a lossless mode beyond what it may do to a row.
    """

    cache: str
    lossless: bool
    steps: int
    max_abs_logit_diff: float
    mean_kl: float
    top1_agreement: float
    first_divergence: int | None
    tolerance: float
    wrong_row: WrongRow | None = None

    @property
    def is_beyond(self) -> bool:
        """Whether some logit differs by more than rounding may make it; a NaN does."""
        return not self.max_abs_logit_diff <= self.tolerance

    @property
    def passes(self) -> bool:
        """A lossless mode stays within rounding, in its logits and in its rows; others are measured, not judged."""
        return not self.lossless or not (self.is_beyond or self.wrong_row)


def reference(model: LoadedModel, prompt_ids: tuple[int, ...], num_steps: int) -> Reference:
    """Greedy decoding by recomputing everything, through the model's own attention: nothing of ours takes part."""
    ids = list(prompt_ids)
    logits: list[torch.Tensor] = []
    rows = SequenceCache(CacheSpec(), model.model.config, model.max_length)
    for step in range(num_steps):
        record = rows.live if step == num_steps - 1 else None
        logits.append(model.reference_logits(torch.tensor([ids], device=model.device), record)[-1].float().cpu())
        ids.append(int(logits[-1].argmax()))
    return Reference(prompt_ids, tuple(ids[len(prompt_ids) :]), torch.stack(logits), rows)


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
    spec = fitted(spec, len(yardstick.prompt_ids) + len(yardstick.token_ids))
    session = Session(model, spec, prefill_chunk=prefill_chunk)
    logits = session_logits(session, yardstick.prompt_ids, yardstick.token_ids)
    info = model.info
    found = measure(name, spec.is_exact, logits, yardstick.logits, info.dtype)
    if not found.lossless:
        return found
    (sequence,) = session.sequences
    cache = session.cache_of(sequence.seq_id)
    wrong = first_wrong_row(info.geometry.attention_layers, cache, yardstick.cache, info.dtype)
    return replace(found, wrong_row=wrong)


def measure(name: str, lossless: bool, logits: torch.Tensor, yardstick: torch.Tensor, dtype: str) -> Parity:
    """Compare logits `[steps, V]` of a model of that dtype. Anything not finite counts as infinitely far."""
    expected = yardstick.log_softmax(-1)
    kl = torch.nn.functional.kl_div(logits.log_softmax(-1), expected, log_target=True, reduction="none").sum(-1)
    agrees = logits.argmax(-1) == yardstick.argmax(-1)
    departures = (~agrees).nonzero()
    return Parity(
        cache=name,
        lossless=lossless,
        steps=len(logits),
        max_abs_logit_diff=largest(logits, yardstick),
        mean_kl=max(0.0, float(kl.mean())),
        top1_agreement=float(agrees.float().mean()),
        first_divergence=int(departures[0]) if len(departures) else None,
        tolerance=LOGIT_TOLERANCE[dtype],
    )
