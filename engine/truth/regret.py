"""Policy regret: what removing each row, or page of rows, does to the next token, beside what a rule thinks of it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch

from engine.cache.adapter import SequenceCache
from engine.cache.compact import CompactCache
from engine.cache.retention import LayerView
from engine.commands import MeasureRegret
from engine.config import CacheSpec
from engine.errors import InputError
from engine.probe import frozen as read_only
from engine.records import Regret
from engine.session import Session
from engine.slices import frozen_ints
from engine.truth.frozen import Frozen, divergence, exact_logits, freeze, watched

BATCH = 16


def regret(session: Session, request: MeasureRegret) -> Iterator[tuple[int, int] | Regret]:
    """Yields how many removals are done and of how many, and last the answer. Closing it early leaves no trace.

    A removal takes the rows of one page out of every layer and head at once, by the mask, sixteen removals a forward.
    """
    began = time.perf_counter()
    if request.page_size < 1:
        raise InputError(f"A page of {request.page_size} rows cannot be removed: give 1 or more.")
    if not session.model.info.captures_attention or not session.model.takes_positions:
        raise InputError("Removing rows by the mask needs a model that takes positions and runs our attention.")
    frozen = freeze(session, request.seq_id)
    scores = row_scores(frozen, request.cache)
    baseline = exact_logits(frozen)
    starts = list(range(0, frozen.num_tokens - 1, request.page_size))
    found: list[float] = []
    for first in range(0, len(starts), BATCH):
        yield first, len(starts)
        found += removed(frozen, starts[first : first + BATCH], request.page_size, baseline)
    pages = [scores[start : start + request.page_size].mean() for start in starts]
    yield Regret(
        request=request,
        step=session.last_step or 0,
        positions=frozen_ints(np.array(starts)),
        kl=read_only(np.array(found)),
        scores=read_only(np.array([float(page) for page in pages])),
        rank_correlation=rank_correlation(np.array(found), np.array([float(page) for page in pages])),
        took_ms=(time.perf_counter() - began) * 1e3,
    )


@torch.inference_mode()
def row_scores(frozen: Frozen, spec: CacheSpec) -> torch.Tensor:
    """The rule's score of every row `[S]`, averaged over layers and heads after ranking each head's scores 0 … 1."""
    spec.retention.check(frozen.model.info.geometry, frozen.model.info.captures_attention)
    if spec.retention.keeps_all:
        raise InputError("A cache that keeps all rows ranks none: name a rule, such as h2o.")
    cache = CompactCache(spec, frozen.model.model.config, frozen.num_tokens, frozen.seq_id)
    assert cache.rule is not None
    probe = watched(frozen, cache)
    ranks = []
    for index, rows in frozen.rows.items():
        heads, count = rows.keys.shape[1], rows.keys.shape[2]
        memory = cache.rule.remember(None, probe, index, heads) if probe is not None else None
        weights = probe.weights[index][0] if probe is not None else None
        positions = torch.arange(count, device=rows.keys.device).expand(heads, -1)
        scores = cache.rule.score(LayerView(index, rows.keys[0], positions, memory, weights))
        ranks.append(scores.argsort(1).argsort(1).float().mean(0) / max(1, count - 1))
    return torch.stack(ranks).mean(0).cpu()


@torch.inference_mode()
def removed(frozen: Frozen, starts: list[int], size: int, baseline: torch.Tensor) -> list[float]:
    """KL of the next token after each removal."""
    batch, count = len(starts), frozen.num_tokens
    cache = SequenceCache(CacheSpec(), frozen.model.model.config, count)
    for index, rows in frozen.rows.items():
        cache.live.update(rows.keys.expand(batch, -1, -1, -1), rows.values.expand(batch, -1, -1, -1), index)
    device = frozen.model.device
    mask = torch.ones(batch, count, dtype=torch.long, device=device)
    for row, start in enumerate(starts):
        mask[row, start : min(start + size, count - 1)] = 0
    ids = torch.full((batch, 1), frozen.token_id, device=device)
    where = torch.full((batch, 1), count - 1, device=device)
    logits = frozen.model.forward(ids, cache.live, None, False, mask, where)[:, -1].float()
    return [divergence(baseline, row) for row in logits]


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's: 1 where the rule ranks rows as their removal does, 0 where it might as well draw them."""
    if len(one) < 2:
        return 0.0
    ranks = [np.argsort(np.argsort(values)).astype(float) for values in (one, other)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
