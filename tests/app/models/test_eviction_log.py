"""When a row was dropped, and by whom: only what the mode in use dropped counts."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from app.models.logs import HELD, EvictionLog, logged_in, when_evicted
from engine.spec.cache import CacheSpec, cache_preset
from engine.wire.records import Eviction, StepRecord
from tests.app import samples

H2O, TOVA = cache_preset("h2o").spec, cache_preset("tova").spec


def drop(position: int, *, layer: int = 0, kv_head: int | None = None, seq_id: int = 0, score: float = 0.5) -> Eviction:
    positions, scores = np.array([position]), np.array([score], np.float32)
    return Eviction(seq_id, layer, kv_head, positions, scores, score + 1, "the rule")


def record(step: int, cache: CacheSpec, *evictions: Eviction) -> StepRecord:
    return replace(samples.step_record(step, cache=cache), evictions=evictions)


STORY = (
    record(0, H2O),
    record(1, H2O, drop(2), drop(2, seq_id=1, score=7)),
    record(2, CacheSpec()),  # every row is back
    record(3, H2O),
    record(4, H2O, drop(3, layer=1, kv_head=1), drop(5)),
    record(5, H2O, drop(6)),
)


@pytest.mark.parametrize(
    ("position", "layer", "kv_head", "step", "cache", "when"),
    [
        (2, 0, 0, 1, H2O, 1),
        (2, 0, 3, 1, H2O, 1),  # of every head
        (2, 0, 0, 0, H2O, None),  # not yet
        (2, 1, 0, 1, H2O, None),  # of that layer alone
        (2, 0, 0, 5, H2O, None),  # a run of the same mode before: its row is back
        (5, 0, 0, 5, H2O, 4),
        (5, 0, 0, 3, H2O, None),
        (6, 0, 0, 4, H2O, None),
        (3, 1, 1, 5, H2O, 4),
        (3, 1, 0, 5, H2O, None),  # of that head alone
        (5, 0, 0, 5, TOVA, None),  # another mode would know nothing of it
    ],
)
def test_what_ended_a_row(position: int, layer: int, kv_head: int, step: int, cache: CacheSpec, when: int) -> None:
    found = EvictionLog().follow(STORY).eviction_of(0, layer, kv_head, position, step, cache)
    assert (found.step if found else None) == when


def test_a_drop_is_told_with_its_own_score_and_the_lowest_that_stayed() -> None:
    found = EvictionLog().follow(STORY).eviction_of(1, 0, 0, 2, 1, H2O)
    assert found is not None
    assert (found.score, found.lowest_kept, found.rule) == (7, 8, "the rule")


def test_a_history_that_was_cut_is_read_anew() -> None:
    log = EvictionLog().follow(STORY)
    other = (*STORY[:4], record(4, H2O), record(5, H2O, drop(7)))
    assert log.follow(STORY[:4]).eviction_of(0, 0, 0, 5, 5, H2O) is None
    assert log.follow(other).eviction_of(0, 0, 0, 5, 5, H2O) is None
    found = log.follow(other).eviction_of(0, 0, 0, 7, 5, H2O)
    assert found is not None
    assert found.step == 5


RUN = (
    record(0, H2O),
    record(1, H2O, drop(2, kv_head=0), drop(5, kv_head=0), drop(2, kv_head=1)),
    record(2, H2O),
    record(3, H2O, drop(5, layer=1)),
)


def test_drops_are_found_by_position_and_step() -> None:
    log = EvictionLog().follow(RUN[:2]).follow(RUN)
    assert [(d.step, d.eviction.kv_head) for d in log.of(0, 2, 3)] == [(1, 0), (1, 1)]
    assert log.of(0, 2, 0) == []
    assert log.of(0, 3, 3) == []
    assert log.of(1, 2, 3) == []
    assert [d.step for d in log.latest(0, 3)] == [3]
    assert [d.step for d in log.latest(0, 2)] == [1, 1, 1]
    assert log.is_whole(0)
    assert not log.is_whole(7)
    assert len(log) == 4


def test_after_a_change_of_mode_only_its_own_drops_count_and_nothing_is_certain() -> None:
    log = EvictionLog().follow(RUN)
    assert log.changed_at(3) is None
    log.follow((*RUN, record(4, CacheSpec())))
    assert log.changed_at(4) == 4
    assert log.changed_at(3) is None
    assert log.of(0, 2, 4) == []
    assert log.latest(0, 4) == []
    assert len(log.of(0, 2, 3)) == 2


def test_heads_that_hold_it_are_told_from_those_that_do_not() -> None:
    log = EvictionLog().follow(RUN)
    assert when_evicted(log.of(0, 5, 3), (0, 1), 2).tolist() == [[1, HELD], [3, 3]]
    found = logged_in(log.of(0, 5, 3), 1, 1)
    assert found is not None
    assert found.step == 3
    assert logged_in(log.of(0, 5, 3), 0, 1) is None
