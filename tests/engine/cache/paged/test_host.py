from __future__ import annotations

import pytest

from engine.cache.paged.host import HostIndex, HostStore, num_host_pages
from engine.cache.paged.pool import PagePool, PoolMisuse
from engine.errors import InputError
from engine.wire.pages import (
    EvictReason,
    MoveDirection,
    PageCommitted,
    PageEvicted,
    PageMoved,
    Tier,
)
from tests.engine.cache.paged.tables import forget_cached, reuse_order

GIB = 1024**3


def tiers(num_pages: int = 9, num_host: int = 4, page_size: int = 2) -> tuple[PagePool, HostIndex]:
    pool = PagePool(num_pages, page_size)
    return pool, HostIndex(num_host, page_size, 1000, events=pool.events)


def run_prompt(pool: PagePool, tokens: list[int]) -> list[PageCommitted]:
    """Compute a prompt from nothing and free it; what was newly committed."""
    table = pool.open_table(0)
    pool.append(table, len(tokens))
    committed = pool.commit(table, tokens)
    pool.release(table)
    return committed


def write_through(host: HostIndex, committed: list[PageCommitted]) -> list[HostStore]:
    stores = []
    for entry in committed:
        store = host.begin_store(entry)
        if store is not None:
            host.finish_store(store, duration_ms=0.25)
            stores.append(store)
        host.check()
    return stores


@pytest.mark.parametrize(
    ("host_gib", "bytes_per_page", "expected"),
    [(1, GIB, 1), (1, GIB - 1, 1), (1.5, GIB, 1), (2, GIB // 4, 8), (0.5, 4096, 131072)],
)
def test_capacity_is_rounded_down(host_gib: float, bytes_per_page: int, expected: int) -> None:
    assert num_host_pages(host_gib, bytes_per_page) == expected


@pytest.mark.parametrize(
    ("host_gib", "words"),
    [(0.5, "holds no page"), (0, "positive"), (-1, "positive"), (float("nan"), "positive"), (float("inf"), "positive")],
)
def test_a_size_that_holds_no_page_is_refused(host_gib: float, words: str) -> None:
    with pytest.raises(InputError, match=words):
        num_host_pages(host_gib, GIB)


@pytest.mark.parametrize(("num_pages", "num_bytes"), [(0, 1), (-1, 1), (2**31, 1), (4, 0)])
def test_impossible_sizes_are_refused(num_pages: int, num_bytes: int) -> None:
    with pytest.raises(InputError, match="impossible"):
        HostIndex(num_pages, 4, num_bytes)
    with pytest.raises(InputError):
        num_host_pages(1, 0)


def test_committed_pages_are_written_through_once() -> None:
    pool, host = tiers()
    committed = run_prompt(pool, [1, 2, 3, 4, 5])
    stores = write_through(host, committed)
    assert [store.host_page_id for store in stores] == [0, 1]
    assert [store.committed for store in stores] == committed
    assert host.num_stored_pages == 2
    assert write_through(host, committed) == []
    assert reuse_order(host) == [2, 3, 0, 1]


def test_every_move_is_told_with_bytes_and_time_in_the_pool_s_own_order() -> None:
    pool, host = tiers()
    committed = run_prompt(pool, [1, 2, 3])
    before = len(pool.events)
    write_through(host, committed)
    moved, stored = pool.events[before:]
    page = committed[0]
    assert moved == PageMoved(MoveDirection.TO_HOST, page.page_id, 0, page.page_hash, 1000, 0.25)
    assert stored == PageCommitted(0, page.page_hash, page.parent_hash, page.token_bytes, Tier.HOST)


def test_the_host_answers_after_the_device_s_run_until_its_first_miss() -> None:
    pool, host = tiers(num_pages=5, num_host=8)
    prompt = [1, 2, 3, 4, 5, 6, 7]
    write_through(host, run_prompt(pool, prompt))
    run_prompt(pool, [9] * 8)  # takes four pages: only [.., 5, 6] .. are gone from the device
    match = pool.match_prefix(prompt)
    assert match.num_hit_tokens == 0
    assert [entry.token_ids for entry in host.match_after(match)] == [(1, 2), (3, 4), (5, 6)]
    assert [entry.token_ids for entry in host.match_after(match, max_pages=2)] == [(1, 2), (3, 4)]
    host.evict([1])
    assert [entry.token_ids for entry in host.match_after(match)] == [(1, 2)]


def test_the_host_continues_where_the_device_s_run_ends() -> None:
    pool, host = tiers(num_host=8)
    prompt = [1, 2, 3, 4, 5, 6, 7]
    committed = run_prompt(pool, prompt)
    write_through(host, committed)
    pool.evict([committed[1].page_id])
    match = pool.match_prefix(prompt)
    assert match.num_hit_tokens == 2
    assert [entry.token_ids for entry in host.match_after(match)] == [(3, 4), (5, 6)]
    assert [entry.token_ids for entry in host.match_after(match, max_pages=1)] == [(3, 4)]
    assert host.match_after(match, max_pages=0) == ()


def test_the_last_token_is_never_served_by_the_host_either() -> None:
    pool, host = tiers()
    write_through(host, run_prompt(pool, [1, 2, 3, 4]))
    forget_cached(pool)
    assert len(host.match_after(pool.match_prefix([1, 2, 3, 4]))) == 1
    assert len(host.match_after(pool.match_prefix([1, 2, 3, 4, 5]))) == 2


def test_a_loaded_prefix_is_findable_on_the_device_again() -> None:
    pool, host = tiers()
    prompt = [1, 2, 3, 4, 5]
    write_through(host, run_prompt(pool, prompt))
    forget_cached(pool)
    match = pool.match_prefix(prompt)
    entries = host.match_after(match, max_pages=pool.num_available_pages)
    table = pool.open_table(1)
    pool.adopt(table, match)
    host.begin_load(entries)
    host.check()
    assert reuse_order(host) == [2, 3]
    pool.append(table, 4)
    host.finish_load(entries, table.page_ids, duration_ms=3.0)
    moves = [event for event in pool.events if isinstance(event, PageMoved)][-2:]
    assert [(m.direction, m.page_id, m.host_page_id, m.duration_ms) for m in moves] == [
        (MoveDirection.TO_DEVICE, table.page_ids[0], 0, 1.5),
        (MoveDirection.TO_DEVICE, table.page_ids[1], 1, 1.5),
    ]
    newly = pool.commit(table, prompt)
    assert write_through(host, newly) == []
    assert pool.match_prefix(prompt).page_ids == tuple(table.page_ids)
    pool.check([table])
    host.check()


def test_the_least_recently_used_host_page_makes_room_and_a_load_is_a_use() -> None:
    pool, host = tiers(num_pages=30, num_host=3)
    first = run_prompt(pool, [1, 1])
    for token in (1, 2, 3):
        write_through(host, first if token == 1 else run_prompt(pool, [token] * 2))
    forget_cached(pool)
    entries = host.match_after(pool.match_prefix([1, 1, 0]))
    host.begin_load(entries)
    host.finish_load(entries, [5], 1.0)
    assert reuse_order(host) == [1, 2, 0]
    write_through(host, run_prompt(pool, [4, 4]))
    evicted = [event for event in pool.events if isinstance(event, PageEvicted)][-1]
    assert (evicted.committed.token_ids, evicted.committed.tier, evicted.reason) == (
        (2, 2),
        Tier.HOST,
        EvictReason.ROOM,
    )


def test_a_prefix_is_evicted_from_its_end_after_a_load() -> None:
    pool, host = tiers(num_host=2)
    write_through(host, run_prompt(pool, [1, 2, 3, 4]))
    forget_cached(pool)
    entries = host.match_after(pool.match_prefix([1, 2, 3, 4, 5]))
    host.begin_load(entries)
    host.abandon_load(entries)
    assert reuse_order(host) == [1, 0]


def test_a_page_that_is_being_copied_is_never_taken() -> None:
    pool, host = tiers(num_host=1)
    store = host.begin_store(run_prompt(pool, [1, 1])[0])
    assert store is not None
    assert host.begin_store(run_prompt(pool, [2, 2])[0]) is None
    assert host.num_stored_pages == 0
    host.finish_store(store, 1.0)
    entries = host.match_after(PagePool(9, 2).match_prefix([1, 1, 1]))
    host.begin_load(entries)
    assert host.begin_store(run_prompt(pool, [3, 3])[0]) is None
    host.abandon_load(entries)
    assert host.begin_store(run_prompt(pool, [4, 4])[0]) is not None


def test_two_sequences_may_load_one_page_and_the_last_one_lets_it_go() -> None:
    pool, host = tiers()
    write_through(host, run_prompt(pool, [1, 1]))
    entries = host.match_after(PagePool(9, 2).match_prefix([1, 1, 1]))
    host.begin_load(entries)
    host.begin_load(entries)
    host.finish_load(entries, [3], 1.0)
    host.check()
    assert 0 not in reuse_order(host)
    host.abandon_load(entries)
    host.check()
    assert reuse_order(host)[-1] == 0


def test_a_copy_that_failed_leaves_an_empty_page() -> None:
    pool, host = tiers(num_host=1)
    committed = run_prompt(pool, [1, 1])[0]
    store = host.begin_store(committed)
    assert store is not None
    host.abandon_store(store)
    host.check()
    assert (host.num_stored_pages, reuse_order(host)) == (0, [0])
    assert host.begin_store(committed) is not None


def test_two_copies_of_the_same_tokens_under_way_leave_one() -> None:
    pool, host = tiers()
    committed = run_prompt(pool, [1, 1])[0]
    stores = [host.begin_store(committed), host.begin_store(committed)]
    for store in stores:
        assert store is not None
        host.finish_store(store, 1.0)
    host.check()
    assert host.num_stored_pages == 1


def test_misuse_is_refused_and_changes_nothing() -> None:
    pool, host = tiers()
    [store] = write_through(host, run_prompt(pool, [1, 1]))
    entries = host.match_after(PagePool(9, 2).match_prefix([1, 1, 1]))
    with pytest.raises(PoolMisuse, match="is not being copied"):
        host.abandon_store(store)
    with pytest.raises(PoolMisuse, match="lies on the host already"):
        host.begin_store(entries[0])
    with pytest.raises(PoolMisuse, match="cannot have gone to 2"):
        host.finish_load(entries, [1, 2], 1.0)
    host.evict([0])
    with pytest.raises(PoolMisuse, match="changed since"):
        host.begin_load(entries)
    host.check()
