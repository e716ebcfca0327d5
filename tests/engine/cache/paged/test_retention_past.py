"""Going back, forks and failures where rules drop pages."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from engine.cache.paged.cache import PagedCache
from tests.effort import effort
from tests.engine.cache.compressed.test_cache_going_back import (
    EVERYWHERE,
    WAYS,
    Way,
    assert_same,
    go_back_and_forth,
    state_of,
)
from tests.engine.cache.paged.driving import check, store_of
from tests.engine.cache.paged.retained import BY_RULE, RULES, SPECS, paged, session_of
from tests.engine.faults import Injected, failing_at


@settings(max_examples=effort(8, 200), suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(list(SPECS)), way=WAYS)
@example("h2o", EVERYWHERE)
def test_going_back_and_stepping_again_is_exact_to_the_bit(name: str, way: Way) -> None:
    go_back_and_forth(SPECS[name], way, check)


def test_the_journal_goes_back_without_computing() -> None:
    session, _ = session_of(RULES["h2o"])
    for _ in range(20):
        session.step()
    assert session.go_to(5).startswith("put")
    assert session.bytes().looking > 0


def test_without_room_for_the_journal_the_past_is_computed_again() -> None:
    session, seq_id = session_of(RULES["window"], num_pages=12)
    states = []
    for _ in range(14):
        session.step()
        states.append(state_of(session, seq_id))
    pool, cache = store_of(session).groups[0].pool, session.cache_of(seq_id)
    assert isinstance(cache, PagedCache)
    shared = pool.fork(cache.tables[0], 98)  # what the sequence gives up stays in use
    others = pool.open_table(99)
    pool.append(others, pool.num_available_pages * pool.page_size)
    assert session.go_to(2) == "repeated 3 steps from the start"
    assert_same(state_of(session, seq_id), states[2])
    check(session)
    session.step()
    check(session)
    assert_same(state_of(session, seq_id), states[3])
    pool.release(others)
    pool.release(shared)


@BY_RULE
def test_a_step_that_fails_anywhere_changes_nothing(name: str) -> None:
    session, seq_id = session_of(RULES[name], prompt=24)
    while session.is_prefilling:
        session.step()
    for _ in range(4):
        session.step()
    before = state_of(session, seq_id)
    number, outcome = 40, failing_at(40, session.step)  # a page is begun, so that one is dropped
    while isinstance(outcome, Injected):
        check(session)
        assert session.sequence(seq_id).num_tokens == 28
        session.go_to(session.last_step or 0)
        assert_same(state_of(session, seq_id), before)
        number += effort(41, 1)
        outcome = failing_at(number, session.step)
    assert outcome.evictions or name in ("snapkv", "random", "window")
    check(session)


def test_a_fork_goes_its_own_way() -> None:
    session, seq_id = session_of(RULES["h2o"])
    for _ in range(8):
        session.step()
    fork = session.fork(seq_id).child
    check(session)
    assert_same(state_of(session, fork), state_of(session, seq_id))
    before = state_of(session, fork)
    session.stop(fork)
    for _ in range(8):
        session.step()
        check(session)
    assert_same(state_of(session, fork), before)


def test_going_back_says_how_many_rows_came_back() -> None:
    session, _ = session_of(RULES["knorm"])
    while session.is_prefilling:
        session.step()
    back, count = session.last_step, session.sequence(0).num_tokens
    dropped: set[int] = set()
    for _ in range(9):
        (*evictions,) = session.step().evictions
        dropped.update(int(place) for one in evictions if one.layer == 0 for place in one.positions)
    there = [place for place in dropped if place // 4 * 4 < count]  # those of later pages are not there then
    assert 4 <= len(there) < len(dropped)
    assert session.go_to(back) == f"put {len(there)} evicted rows back where they were"


def no_room(*args: object) -> None:
    raise MemoryError


def test_what_a_failed_step_dropped_is_not_told_of_the_step_that_is_done_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever looks again and has seen neither that step nor the one before it reads every row."""
    session, seq_id = session_of(RULES["tova"], page_size=1)
    for _ in range(7):
        session.step()
    had = paged(session, seq_id).num_tokens
    with monkeypatch.context() as broken:
        broken.setattr(session.history, "add", no_room)
        with pytest.raises(MemoryError):
            session.step()
    evictions = session.step().evictions
    assert paged(session, seq_id).changes_since(had - 1) is None
    changes = paged(session, seq_id).changes_since(had)
    assert changes is not None
    for layer, change in enumerate(changes):
        gone = torch.cat(change.evicted, 1)[0].tolist()
        assert gone == [int(place) for one in evictions if one.layer == layer for place in one.positions] != []
