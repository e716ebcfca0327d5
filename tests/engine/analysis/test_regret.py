"""What removing rows does, against what a rule thinks of them; and why a row went."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.analysis.what_if import Trial, exact_logits, newest_logits, rank_correlation, scratch_cache, trial_of
from engine.cache.compressed.cache import CompressedCache
from engine.look.candidates import kl_divergence
from engine.session.rerun import fill
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.retention import RetentionSpec
from engine.wire.measurements import MeasureRegret
from tests.engine.analysis.live import WINDOW, answer, started
from tests.engine.cache.compressed.test_cache_going_back import assert_same, state_of


def test_regret_is_what_forgetting_a_page_does() -> None:
    session, seq_id = started()
    before = state_of(session, seq_id)
    found = answer(session, MeasureRegret(seq_id, CacheSpec(retention=RetentionSpec("tova", budget=12)), page_size=5))
    assert_same(state_of(session, seq_id), before)
    count = session.sequence(seq_id).num_tokens - 1
    assert found.positions.tolist() == list(range(0, count, 5))
    assert len(found.kl) == len(found.scores) == len(found.positions)
    assert float(found.kl.min()) >= 0
    # each page gone by itself: the same as computing the newest token to a cache of the other rows
    for number, first in enumerate(found.positions.tolist()):
        assert float(found.kl[number]) == pytest.approx(
            without_rows(session, seq_id, first, first + 5), rel=1e-3, abs=1e-6
        )


def without_rows(session: Session, seq_id: int, start: int, stop: int) -> float:
    """KL of the next token where rows `start … stop` are not there: kept by position in a cache of their own."""
    trial = trial_of_session(session, seq_id)
    kept = [n for n in range(trial.num_tokens - 1) if not start <= n < stop]
    cache = CompressedCache(CacheSpec(retention=RetentionSpec("knorm", budget=99)), session.model.model.config, 128, 0)
    fill(cache, trial.rows, 0, trial.num_tokens - 1)
    with torch.inference_mode():
        for _, layer in cache.compressed_layers:
            slots = torch.tensor(kept).expand(layer.num_heads, -1)
            layer.key_store, layer.value_store = layer.key_store.with_only(slots), layer.value_store.with_only(slots)
            layer.positions, layer.held = slots, len(kept)
    return kl_divergence(exact_logits(trial), newest_logits(trial, cache))


def trial_of_session(session: Session, seq_id: int) -> Trial:
    pieces = trial_of(session, seq_id)
    with pytest.raises(StopIteration) as end:
        next(pieces)
    trial = end.value.value
    assert isinstance(trial, Trial)
    return trial


@pytest.mark.parametrize("name", ["h2o", "snapkv", "tova"])
def test_a_rule_has_not_seen_the_query_that_it_is_judged_by(name: str) -> None:
    """Two sequences that differ in their newest token alone: the rule ranks, and keeps, the same rows of both."""
    spec = CacheSpec(retention=RetentionSpec(name, budget=12))  # type: ignore[arg-type]
    (one, seq_id), (other, _) = started(), started()
    for session, token in ((one, 5), (other, 90)):
        session.force(seq_id, (token,))
        session.step()
    found, again = (answer(session, MeasureRegret(seq_id, spec)) for session in (one, other))
    assert found.kl.tolist() != again.kl.tolist()
    assert found.scores.tolist() == again.scores.tolist()
    for mine, theirs in zip(
        *(scratch_cache(trial_of_session(s, seq_id), spec).compressed_layers for s in (one, other)), strict=True
    ):
        assert torch.equal(mine[1].all_positions(), theirs[1].all_positions())


def test_h2o_is_ranked_by_what_every_query_before_the_newest_gave() -> None:
    """Accumulated as the live cache itself accumulates it, not by one query alone."""
    spec = CacheSpec(retention=RetentionSpec("h2o", budget=100))
    session, seq_id = started(spec)
    cache = session.cache_of(seq_id)
    assert isinstance(cache, CompressedCache)
    before = [layer.memory.clone() for _, layer in cache.compressed_layers if layer.memory is not None]
    session.step()
    ranks = [memory.argsort(1).argsort(1).float().mean(0) / (memory.shape[1] - 1) for memory in before]
    found = answer(session, MeasureRegret(seq_id, spec))
    assert found.scores.tolist() == pytest.approx(torch.stack(ranks).mean(0).tolist(), abs=0.02)


@pytest.mark.parametrize("tried", [CacheSpec(), CacheSpec(retention=WINDOW)])
def test_what_was_tried_before_changes_no_score(tried: CacheSpec) -> None:
    (session, seq_id), (fresh, _) = started(), started()
    request = MeasureRegret(seq_id, CacheSpec(retention=RetentionSpec("tova", budget=12)))
    for _ in session.reruns.prompt_of(tried, list(session.sequence(seq_id).token_ids)[:-1]):
        pass  # as a trial of that mode leaves it
    np.testing.assert_array_equal(answer(session, request).scores, answer(fresh, request).scores)


def test_rank_correlation() -> None:
    assert rank_correlation(np.array([1.0, 2.0, 5.0]), np.array([0.1, 0.2, 9.0])) == pytest.approx(1)
    assert rank_correlation(np.array([1.0, 2.0, 5.0]), np.array([9.0, 0.2, 0.1])) == pytest.approx(-1)
    assert rank_correlation(np.array([1.0]), np.array([9.0])) == 0
    assert rank_correlation(np.zeros(4), np.arange(4.0)) == 0
    tied = rank_correlation(np.array([0.0, 0.0, 0.0, 1.0]), np.array([3.0, 1.0, 2.0, 4.0]))
    assert tied == rank_correlation(np.array([0.0, 0.0, 0.0, 1.0]), np.array([1.0, 2.0, 3.0, 4.0])), (
        "ties have no order"
    )


def test_an_eviction_tells_the_scores_of_those_that_stayed() -> None:
    session, _ = started(CacheSpec(retention=RetentionSpec("knorm", budget=30, sinks=2, window=3)), steps=0)
    for _ in range(3):
        record = session.step()
    assert {e.kv_head for e in record.evictions} == {0, 1}
    for eviction in record.evictions:
        survivors = eviction.survivors
        assert (survivors.on_merit, survivors.protected) == (25, 5)
        assert len(survivors.quantiles) == 17
        assert survivors.quantiles[0] == eviction.lowest_kept
        assert (np.diff(survivors.quantiles) >= 0).all()
        assert float(eviction.scores.max()) <= float(survivors.quantiles[0])


def test_a_window_keeps_nothing_on_merit() -> None:
    session, _ = started(CacheSpec(retention=WINDOW), steps=0)
    for _ in range(3):
        record = session.step()
    (eviction, *_) = record.evictions
    assert (eviction.survivors.on_merit, eviction.survivors.protected) == (0, 12)
    assert eviction.survivors.quantiles.size == 0
    assert eviction.lowest_kept is None
