"""Policy regret: what removing each row, or page of rows, does to the next token, beside the score that a retention
rule gives it."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator

import numpy as np
import torch

from engine.analysis.trial import Trial, exact_logits, trial_of
from engine.cache.compressed.cache import CompressedCache
from engine.cache.compressed.retention import LayerView, Rule, rule_of
from engine.cache.sequence_cache import SequenceCache
from engine.cache.stacking import on_one_device
from engine.errors import InputError
from engine.look.candidates import kl_divergence
from engine.model.batch import Batch
from engine.session.driver import Driver
from engine.session.rerun import Progress
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.retention import layers_that_evict
from engine.wire.measurements import MeasureRegret, Regret
from engine.wire.records import read_only_floats, read_only_ints

BATCH = 16


def regret(session: Session, request: MeasureRegret) -> Iterator[Progress | Regret]:
    """Yield progress (tokens computed, then removals done, each of how many), and last the answer. The live cache is
    not changed, so it can be closed at any time.

    A removal masks the rows of one page in every layer and head; sixteen removals are one forward pass.
    """
    began = time.perf_counter()
    if request.page_size < 1:
        raise InputError(f"A page of {request.page_size} rows cannot be removed: give 1 or more.")
    if not session.model.info.captures_attention or not session.model.takes_positions:
        raise InputError("Removing rows by the mask needs a model that takes positions and runs our attention.")
    trial = yield from trial_of(session, request.seq_id)
    starts = list(range(0, trial.num_tokens - 1, request.page_size))
    scores = yield from row_scores(session, trial, request.cache)
    baseline = exact_logits(trial)
    found: list[float] = []
    for first in range(0, len(starts), BATCH):
        yield first, len(starts)
        found += removal_kls(trial, starts[first : first + BATCH], request.page_size, baseline)
    pages = [scores[start : start + request.page_size].mean() for start in starts]
    yield Regret(
        request=request,
        step=session.last_step or 0,
        positions=read_only_ints(np.array(starts)),
        kl=read_only_floats(np.array(found)),
        scores=read_only_floats(np.array([float(page) for page in pages])),
        rank_correlation=rank_correlation(np.array(found), np.array([float(page) for page in pages])),
        took_ms=(time.perf_counter() - began) * 1e3,
        is_rebuilt=trial.is_rebuilt,
    )


def row_scores(session: Session, trial: Trial, spec: CacheSpec) -> Generator[Progress, None, torch.Tensor]:
    """The rule's score of every row `[S]` before the newest token: ranked 0 … 1 in each head, averaged over the heads
    and over the layers that evict rows.

    The rule's memory and attention are as if it had watched all tokens before the newest and evicted nothing. Therefore
    these tokens are computed again into a scratch cache, since attention in the live cache may not have been watched.
    The newest token itself is left out: it is the query of the prediction, and a rule that had seen it would know the
    answer.
    """
    spec.retention.check(trial.model.info.geometry, trial.model.info.captures_attention)
    if spec.retention.keeps_all:
        raise InputError("A cache that keeps all rows ranks none: name a rule, such as h2o.")
    rule, watched = rule_of(spec.retention), None
    if rule.probe() is not None:
        watched = yield from session.reruns.prompt_of(CacheSpec(retention=spec.retention), trial.token_ids[:-1])
    return averaged_ranks(trial, rule, watched)


@torch.inference_mode()
def averaged_ranks(trial: Trial, rule: Rule, watched: Driver | None) -> torch.Tensor:
    """The rank 0 … 1 of every row, averaged over heads and over the layers that evict rows, `[S]`."""
    ranks = []
    for index in layers_that_evict(trial.model.info.geometry):
        keys = trial.rows[index].keys
        heads, count = keys.shape[1], keys.shape[2]
        positions = torch.arange(count, device=keys.device).expand(heads, -1)
        recent = rule.spec.recent(rule.spec.num_kept(count))
        memory, weights = (None, None) if watched is None else (memory_of(watched, index), watched.weights[index][0])
        scores = rule.score(LayerView(index, keys[0], positions, memory, weights, recent))
        ranks.append(scores.argsort(1).argsort(1).float().mean(0) / max(1, count - 1))
    return torch.stack(on_one_device(ranks)).mean(0).cpu()


def memory_of(watched: Driver, layer: int) -> torch.Tensor | None:
    """The accumulated scores that the rule of a cache keeps for a layer."""
    assert isinstance(watched.cache, CompressedCache)
    return dict(watched.cache.compressed_layers)[layer].memory


@torch.inference_mode()
def removal_kls(trial: Trial, starts: list[int], size: int, baseline: torch.Tensor) -> list[float]:
    """KL of the next token after each removal."""
    batch, count = len(starts), trial.num_tokens
    cache = SequenceCache(CacheSpec(), trial.model.model.config, count)
    for index, rows in trial.rows.items():
        cache.live.update(rows.keys.expand(batch, -1, -1, -1), rows.values.expand(batch, -1, -1, -1), index)
    device = trial.model.device
    mask = torch.ones(batch, count, dtype=torch.long, device=device)
    for row, start in enumerate(starts):
        mask[row, start : min(start + size, count - 1)] = 0
    ids = torch.full((batch, 1), trial.token_id, device=device)
    where = torch.full((batch, 1), count - 1, device=device)
    logits = trial.model.forward(Batch(ids, cache.live, padding=mask, positions=where)).logits[:, -1].float()
    return [kl_divergence(baseline, row) for row in logits]


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's rank correlation: 1 if the rule ranks rows as their removal does, 0 if it ranks them like random
    draws."""
    if len(one) < 2:
        return 0.0
    ranks = [mean_ranks(values) for values in (one, other)]
    if any(np.ptp(rank) == 0 for rank in ranks):
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def mean_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0 up; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts + 1) / 2)[place], dtype=float)
