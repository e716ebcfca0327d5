"""Every operation of the pool is whole: where a call inside of it fails, nothing has changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.cache.paged.pool import PagePool
from engine.cache.paged.table import PageTable
from tests.engine.cache.paged.tables import reuse_order, state_of
from tests.engine.faults import Injected, failing_at

Tables = dict[str, PageTable]
IDS = tuple(range(16))


def made(replaces: bool = False) -> tuple[PagePool, Tables]:
    """Sequence 0 of 14 tokens in pages of 4, with a fork; sequence 2 with pages of its own, of which one was dropped;
    and pages that are cached, of the same tokens as the first ones of 0."""
    pool = PagePool(24, 4, replaces_duplicates=replaces)
    gone, zero, two = (pool.open_table(seq_id) for seq_id in (9, 0, 2))
    for table, count in ((gone, 12), (zero, 14), (two, 18)):
        pool.append(table, count)
    pool.commit(gone, IDS)
    pool.release(gone)
    pool.evict_from(two, (1,))
    return pool, {"zero": zero, "fork": pool.fork(zero, 1), "two": two, "new": pool.open_table(3)}


def state(pool: PagePool, tables: Tables) -> object:
    pages = [(pool.ref_count(page), state_of(pool, page), pool.entry(page)) for page in range(pool.num_pages)]
    slots = [[getattr(table, name) for name in PageTable.__slots__] for table in tables.values()]
    return repr((pages, reuse_order(pool), pool.counts(), slots, len(pool.events)))


OPERATIONS: dict[str, Callable[[PagePool, Tables], object]] = {
    "a page of its own in the place of a shared one": lambda pool, t: pool.append(t["fork"], 1),
    "fork": lambda pool, t: pool.fork(t["two"], 4),
    "truncate": lambda pool, t: pool.truncate(t["zero"], 3),
    "truncate behind a dropped page": lambda pool, t: pool.truncate(t["two"], 3),
    "drop": lambda pool, t: pool.evict_from(t["two"], (0, 2)),
    "slide": lambda pool, t: pool.slide(t["zero"], 9),
    "release": lambda pool, t: pool.release(t["two"]),
    "release what is shared": lambda pool, t: pool.release(t["fork"]),
    "adopt": lambda pool, t: pool.adopt(t["new"], pool.match_prefix(IDS), 4),
    "adopt nothing": lambda pool, t: pool.adopt(t["new"], pool.match_prefix(IDS[1:]), 4),
    "own": lambda pool, t: pool.make_writable(t["fork"], (3,)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_that_fails_anywhere_changes_nothing(name: str) -> None:
    pool, tables = made()
    before, number = state(pool, tables), 0
    outcome: object = Injected()
    while isinstance(outcome, Injected):
        number += 1
        assert state(pool, tables) == before, f"call {number - 1}, {outcome}"
        outcome = failing_at(number, lambda: OPERATIONS[name](pool, tables))
    assert number > 2, "some of it can fail"
    assert state(pool, tables) != before
    others = [outcome] if isinstance(outcome, PageTable) else []
    pool.check([*tables.values(), *others])


def test_a_twin_takes_the_place_of_a_page_or_does_not() -> None:
    pool, tables = made(replaces=True)
    pool.truncate(tables["fork"], 0)
    number, outcome = 0, object()
    while number == 0 or isinstance(outcome, Injected):
        number += 1
        outcome = failing_at(number, lambda: pool.commit(tables["zero"], IDS))
        pool.check(tables.values())
    assert number > 10
    assert [pool.ref_count(page) for page in tables["zero"].page_ids[:3]] == [1, 1, 1]
    assert tables["zero"].page_ids[:3] == list(pool.match_prefix((*IDS, 1)).page_ids)
