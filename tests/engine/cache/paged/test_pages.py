"""Pages one by one: sizes, states, the order of reuse, failures that change nothing."""

from __future__ import annotations

import pytest

from engine.cache.paged.pool import PagePool, PoolCounts, PoolExhausted, PoolMisuse
from engine.errors import InputError
from engine.spec.cache import CacheSpec
from tests.engine.cache.paged.tables import reuse_order, start, state_of, take


@pytest.mark.parametrize("page_size", [2**exponent for exponent in range(11)])
def test_every_power_of_two_is_a_page_size(page_size: int) -> None:
    assert CacheSpec("paged", page_size=page_size).page_size == page_size


@pytest.mark.parametrize("page_size", [0, -1, -16, 3, 12, 1023, 2048])
def test_other_page_sizes_are_refused(page_size: int) -> None:
    with pytest.raises(InputError, match="power of two from 1 to 1,024"):
        CacheSpec("paged", page_size=page_size)


@pytest.mark.parametrize("num_pages", [1, 0, -4, 2**31])
def test_impossible_pool_sizes_are_refused(num_pages: int) -> None:
    with pytest.raises(InputError, match="is impossible"):
        PagePool(num_pages)


def test_a_new_pool_is_free_but_for_the_null_page() -> None:
    pool = PagePool(4)
    assert reuse_order(pool) == [1, 2, 3]
    assert pool.counts() == PoolCounts(num_free=3, num_cached=0, num_used=0, num_shared=0)
    assert [state_of(pool, page_id) for page_id in range(2)] == ["null", "free"]


def test_a_page_goes_through_all_states() -> None:
    pool = PagePool(3, 2)
    table = start(pool, 0, [1, 2])
    assert state_of(pool, 1) == "used"
    fork = pool.fork(table, 1)
    assert (state_of(pool, 1), pool.ref_count(1)) == ("shared", 2)
    pool.release(table)
    assert state_of(pool, 1) == "used"
    pool.release(fork)
    assert state_of(pool, 1) == "cached"
    assert pool.counts() == PoolCounts(num_free=1, num_cached=1, num_used=0, num_shared=0)
    pool.evict([1])
    assert state_of(pool, 1) == "free"


def test_pages_are_released_last_first() -> None:
    pool = PagePool(6, 2)
    table = start(pool, 0, [1, 2, 3, 4, 5])
    pool.release(table)
    assert reuse_order(pool) == [4, 5, 3, 2, 1]
    assert (table.page_ids, table.num_tokens, table.page_hashes) == ([], 0, [])


@pytest.mark.parametrize("num_pages", [4, 5, 10**9])
def test_an_allocation_that_fails_changes_nothing(num_pages: int) -> None:
    pool = PagePool(6, 2)
    held = take(pool, 2, seq_id=0)
    pool.events.clear()
    with pytest.raises(PoolExhausted, match="only 3 can be taken") as caught:
        take(pool, num_pages, seq_id=1)
    assert (caught.value.num_needed_pages, caught.value.num_available_pages) == (num_pages, 3)
    assert pool.events == []
    assert reuse_order(pool) == [3, 4, 5]
    assert [pool.ref_count(page_id) for page_id in held] == [1, 1]
    assert take(pool, 3, seq_id=1) == [3, 4, 5]


def test_an_append_that_fails_between_copy_and_new_page_changes_nothing() -> None:
    pool = PagePool(3, 2)
    table = start(pool, 0, [1, 2, 3])  # both pages
    fork = pool.fork(table, 1)
    pool.events.clear()
    assert pool.num_pages_needed(fork, 1) == 1
    with pytest.raises(PoolExhausted):
        pool.append(fork, 1)
    assert (fork.page_ids, fork.num_tokens, pool.events) == (table.page_ids, 3, [])
    pool.check([table, fork])


def test_an_admission_counts_the_cached_pages_that_it_hits_as_gone() -> None:
    pool = PagePool(4, 2)
    pool.release(start(pool, 0, [1, 2, 3, 4]))
    match = pool.match_prefix([1, 2, 3, 4, 5, 6, 7])
    assert match.num_hit_tokens == 4
    order, table = reuse_order(pool), pool.open_table(1)
    pool.events.clear()
    with pytest.raises(PoolExhausted) as caught:
        pool.adopt(table, match, num_new_tokens=3)
    assert (caught.value.num_needed_pages, caught.value.num_available_pages) == (2, 1)
    assert (reuse_order(pool), pool.events, table.page_ids) == (order, [], [])
    pool.adopt(table, match, num_new_tokens=2)
    pool.append(table, 2)
    pool.check([table])


def test_appending_nothing_or_less() -> None:
    pool = PagePool(3, 2)
    table = pool.open_table(0)
    assert pool.append(table, 0) is None
    assert table.page_ids == []
    with pytest.raises(InputError, match="-1 tokens"):
        pool.append(table, -1)


def test_misuse_is_named_and_changes_nothing() -> None:
    pool = PagePool(6, 2)
    table = start(pool, 0, [1, 2])
    order = reuse_order(pool)
    with pytest.raises(PoolMisuse, match="has tokens already"):
        pool.adopt(table, pool.match_prefix([1, 2, 3]))
    stale = pool.match_prefix([1, 2, 3])
    pool.evict([1])
    with pytest.raises(PoolMisuse, match="changed since"):
        pool.adopt(pool.open_table(1), stale)
    assert reuse_order(pool) == order
    pool.check([table])


def test_the_null_page_is_never_counted_taken_or_freed() -> None:
    pool = PagePool(6, 2)
    assert (pool.ref_count(0), pool.evict([0])) == (0, 0)
    assert 0 not in take(pool, 5, seq_id=0)
    pool.check()
