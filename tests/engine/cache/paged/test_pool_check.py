"""What `check()` finds, and everything a pool and a host tier can do against plain lists."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.cache.paged.pool import PagePool, PoolCorrupted
from engine.cache.paged.table import PageTable
from tests.benchmarks.pool_soak import soak
from tests.effort import effort
from tests.engine.cache.paged.pool_world import PoolWorld, Row
from tests.engine.cache.paged.tables import forget_cached, start


def _lose_a_page(pool: PagePool, table: PageTable) -> None:
    pool._free.popitem()


def _free_too_early(pool: PagePool, table: PageTable) -> None:
    pool._free[table.page_ids[0]] = None


def _forget_a_reference(pool: PagePool, table: PageTable) -> None:
    table.page_ids.pop()
    table.num_tokens = 2


def _alias(pool: PagePool, table: PageTable) -> None:
    table.page_ids[1] = table.page_ids[0]


def _miscount(pool: PagePool, table: PageTable) -> None:
    pool._num_cached += 1


def _reference_null(pool: PagePool, table: PageTable) -> None:
    pool._refs[0] = 1


def _drop_a_hash(pool: PagePool, table: PageTable) -> None:
    pool._index._by_hash.clear()


def _cut_the_family(pool: PagePool, table: PageTable) -> None:
    pool._index._children.clear()


def _change_a_hash(pool: PagePool, table: PageTable) -> None:
    table.page_hashes[0] = bytes(16)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_lose_a_page, "has 0 references, and in the free list: False"),
        (_free_too_early, "has 1 references, and in the free list: True"),
        (_forget_a_reference, "has 1 references, but 0 tables hold it"),
        (_alias, "a page twice"),
        (_miscount, "are counted as"),
        (_reference_null, "the null page is referenced"),
        (_drop_a_hash, "a hash that does not lead to it"),
        (_cut_the_family, "follow some prefix"),
        (_change_a_hash, "findable by another hash"),
    ],
)
def test_check_names_the_damage(damage: object, words: str) -> None:
    pool = PagePool(8, 2)
    table = start(pool, 0, [1, 2, 3, 4])
    pool.check([table])
    assert callable(damage)
    damage(pool, table)
    with pytest.raises(PoolCorrupted, match=words):
        pool.check([table])


def test_check_without_tables_still_sees_the_lists() -> None:
    pool = PagePool(8, 2)
    del pool._free[3]
    with pytest.raises(PoolCorrupted):
        pool.check()


# --- against the reference ---

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=20)


class PoolMachine(RuleBasedStateMachine):
    """Everything the pool and the host index can do, against `PoolWorld`'s plain lists and memory."""

    @initialize(
        num_pages=st.sampled_from((2, 5, 9, 14)),
        page_size=st.sampled_from((1, 2, 4)),
        replaces=st.booleans(),
        num_host_pages=st.sampled_from((1, 4)),
    )
    def build(self, num_pages: int, page_size: int, replaces: bool, num_host_pages: int) -> None:
        self.world = PoolWorld(num_pages, page_size, replaces, num_host_pages)

    def row(self, data: st.DataObject) -> Row:
        return self.world.rows[data.draw(st.sampled_from(sorted(self.world.rows)))]

    @rule(tokens=TOKENS)
    def admit(self, tokens: list[int]) -> None:
        self.world.admit(tokens)

    @precondition(lambda self: self.world.rows)
    @rule(data=st.data(), tokens=TOKENS)
    def append(self, data: st.DataObject, tokens: list[int]) -> None:
        self.world.append(self.row(data), tokens)

    @precondition(lambda self: self.world.rows)
    @rule(data=st.data())
    def look_ahead(self, data: st.DataObject) -> None:
        self.world.look_ahead(self.row(data))

    @precondition(lambda self: self.world.rows)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.world.commit(self.row(data))

    @precondition(lambda self: 0 < len(self.world.rows) < 8)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        self.world.fork(self.row(data))

    @precondition(lambda self: self.world.rows)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        row = self.row(data)
        self.world.truncate(row, data.draw(st.integers(row.table.first_held_position, len(row.tokens))))

    @precondition(lambda self: self.world.rows)
    @rule(data=st.data())
    def slide(self, data: st.DataObject) -> None:
        row = self.row(data)
        self.world.slide(row, data.draw(st.integers(0, len(row.tokens))))

    @precondition(lambda self: self.world.rows)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self.world.free(data.draw(st.sampled_from(sorted(self.world.rows))))

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        self.world.evict([data.draw(st.integers(1, self.world.pool.num_pages - 1))])

    @rule()
    def fail(self) -> None:
        self.world.exhaust()

    @rule()
    def forget_cached(self) -> None:
        forget_cached(self.world.pool)

    @invariant()
    def everything_agrees(self) -> None:
        self.world.verify()


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(
    max_examples=effort(40, 400), stateful_step_count=50, suppress_health_check=[HealthCheck.too_slow]
)


def test_a_soak_of_many_operations() -> None:
    count = effort(15_000, 100_000)
    result = soak(count, seed=20, verify_every=50)
    assert result.num_refused > count // 100  # failure was exercised, too
