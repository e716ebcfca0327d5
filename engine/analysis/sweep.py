"""The cache modes side by side: what each costs in time, saves in bytes, and does to the next-token distribution."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import torch

from engine.analysis.reference import Reference, measure
from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.session.driver import ModeDriver, go_on
from engine.spec.cache import CacheSpec
from engine.spec.tuning import fitted
from engine.wire.measurements import SweepRow, Unavailable


def sweep(
    model: LoadedModel, specs: Mapping[str, CacheSpec], truth: Reference, check: Callable[[], None] = go_on
) -> Iterator[SweepRow | Unavailable]:
    """Every mode in turn on the same tokens. Stop iterating to stop: nothing outlives its own row."""
    for name, spec in specs.items():
        check()
        try:
            yield sweep_row(model, name, spec, truth, check)
        except InputError as error:
            yield Unavailable(name, str(error))


def sweep_row(
    model: LoadedModel, name: str, spec: CacheSpec, truth: Reference, check: Callable[[], None] = go_on
) -> SweepRow:
    """One mode, fed the tokens of the reference. The rate is of decode steps alone, nothing observed."""
    driver = ModeDriver(model, fitted(spec, len(truth.prompt_ids) + len(truth.token_ids)), len(truth.prompt_ids))
    logits, seconds = [driver.prefill(truth.prompt_ids, check).float().cpu()], 0.0
    for token_id in truth.token_ids[:-1]:
        check()
        began = time.perf_counter()
        newest = driver.feed([token_id])
        seconds += time.perf_counter() - began
        logits.append(newest.float().cpu())
    stacked = torch.stack(logits)
    found = measure(name, spec.is_exact, stacked, truth.logits, model.info.dtype)
    # the exact model's own greedy tokens: how sure a mode is of them, no perplexity of held-out text
    surprise = torch.nn.functional.cross_entropy(stacked, torch.tensor(truth.token_ids))
    return SweepRow(
        cache=name,
        kv_bytes=driver.bytes().stored,
        tok_per_s=round((len(truth.token_ids) - 1) / seconds, 2) if seconds else 0.0,
        mean_kl=found.mean_kl,
        top1_agreement=found.top1_agreement,
        perplexity=float(surprise.exp()),
        max_abs_logit_diff=found.max_abs_logit_diff,
        lossless=found.lossless,
    )
