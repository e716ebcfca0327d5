"""How many pages are free, cached, used and shared: every page is counted once, whatever happens to it."""

from __future__ import annotations

from engine.cache.paged.pool import PagePool
from engine.wire.pages import PageFreed, PageShared
from tests.engine.cache.paged.tables import state_of, take

NUM_PAGES, SIZE = 10, 4


def counted(pool: PagePool) -> tuple[int, int, int, int]:
    """Free, cached, used and shared pages; the null page is none of them."""
    counts = pool.counts()
    found = (counts.num_free, counts.num_cached, counts.num_used, counts.num_shared)
    assert sum(found) == NUM_PAGES - 1
    states = [state_of(pool, page_id) for page_id in range(1, NUM_PAGES)]
    assert found == tuple(states.count(name) for name in ("free", "cached", "used", "shared"))
    return found


def test_a_page_is_counted_once_through_its_life() -> None:
    pool = PagePool(NUM_PAGES, SIZE)
    assert counted(pool) == (9, 0, 0, 0)
    first = pool.open_table(0)
    pool.append(first, 10)
    assert counted(pool) == (6, 0, 3, 0)
    second = pool.fork(first, 1)
    assert counted(pool) == (6, 0, 0, 3)
    pool.append(second, 1)  # the partial page is copied
    assert counted(pool) == (5, 0, 2, 2)
    third = pool.fork(second, 2)
    assert counted(pool) == (5, 0, 1, 3)
    pool.release(third)
    pool.commit(first, list(range(10)))
    pool.release(second)
    assert counted(pool) == (6, 0, 3, 0)
    pool.release(first)
    assert counted(pool) == (7, 2, 0, 0)
    take(pool, 8, 3)  # takes one of the two that could have been found again
    assert counted(pool) == (0, 1, 8, 0)
    assert pool.num_available_pages == 1


def test_pages_that_change_their_owner_are_told_with_how_many_refer_to_them() -> None:
    pool = PagePool(NUM_PAGES, SIZE)
    table = pool.open_table(0)
    pool.append(table, 2 * SIZE)
    pool.commit(table, list(range(2 * SIZE)))
    shared, own = table.page_ids
    other = pool.fork(table, 1)
    pool.truncate(other, SIZE)  # it keeps the first page only
    pool.events.clear()
    moved = pool.num_share_changes
    pool.relabel(table, 7)
    assert pool.events == [
        PageShared(7, shared, 3),
        PageShared(7, own, 2),
        PageFreed(0, shared, 2, True),
        PageFreed(0, own, 1, True),
    ]
    assert (table.seq_id, pool.num_share_changes - moved) == (7, 2)
    pool.relabel(table, 7)
    assert len(pool.events) == 4, "it has that owner already"
