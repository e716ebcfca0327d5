"""The page pool checked against plain lists, operation by operation.

`PoolWorld` knows three things that the pool must agree with: what every sequence has written (read back through its
page table from the memory, so that aliasing, a lost copy or a stale hit shows as wrong tokens), the reference counts
and states of all pages, and the order in which pages are reused.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from engine.cache.paged.host import HostIndex
from engine.cache.paged.pool import PagePool, PoolExhausted
from engine.cache.paged.table import PageTable
from engine.wire import pages
from engine.wire.pages import PrefixEnd
from tests.engine.cache.paged.tables import forget_cached, reuse_order, state_of, take

Prefix = tuple[int, ...]  # all tokens from position 0 to the end of a page: what the page's K and V depend on


@dataclass
class Row:
    """One sequence: its table, and the tokens that it should hold."""

    table: PageTable
    tokens: list[int]


class PoolWorld:
    """The pool, the host index, the reference and the memory, moved together by one operation at a time."""

    def __init__(self, num_pages: int, page_size: int, replaces: bool, num_host_pages: int = 4) -> None:
        self.pool = PagePool(num_pages, page_size, replaces_duplicates=replaces)
        self.host = HostIndex(num_host_pages, page_size, 100, events=self.pool.events)
        self.page_size = page_size
        self.rows: dict[int, Row] = {}
        self.next_seq_id = 0
        # A slot's K and V depend on all tokens up to it, so the memory keeps whole prefixes, not single tokens.
        self.memory: list[list[Prefix | None]] = [[None] * page_size for _ in range(num_pages)]
        self.host_memory: list[list[Prefix | None]] = [[None] * page_size for _ in range(num_host_pages)]
        self.order = list(range(1, num_pages))
        self.refs = [0] * num_pages
        self.findable: dict[int, Prefix] = {}
        self.num_refused = 0

    # --- operations ---

    def admit(self, tokens: list[int]) -> None:
        """A new prompt: device prefix, host prefix, then the rest, all or nothing."""
        match = self.pool.match_prefix(tokens)
        assert match.num_hit_tokens == self.expected_hit(tokens)
        self.expect_reason(tokens, match.num_hit_tokens, self.pool.explain(match, max_candidates=10**6))
        row = Row(self.pool.open_table(self.next_seq_id), [])
        before = self.picture()
        try:
            self.pool.adopt(row.table, match, len(tokens) - match.num_hit_tokens)
        except PoolExhausted:
            self.refuse(before)
            assert row.table.page_ids == []
            return
        self.rows[self.next_seq_id] = row
        self.next_seq_id += 1
        row.tokens = tokens[: match.num_hit_tokens]
        loadable = self.host.match_after(match)
        if loadable:
            self.host.begin_load(loadable)
            first = len(row.table.page_ids)
            self.pool.append(row.table, len(loadable) * self.page_size)
            page_ids = row.table.page_ids[first:]
            for entry, page_id in zip(loadable, page_ids, strict=True):
                self.memory[page_id] = list(self.host_memory[entry.page_id])
            self.host.finish_load(loadable, page_ids, 0.5)
            row.tokens = tokens[: row.table.num_tokens]
            self.commit(row)
        self.append(row, tokens[len(row.tokens) :])

    def append(self, row: Row, tokens: list[int]) -> None:
        before = (self.picture(), repr(row.table), list(row.table.page_hashes))
        needed = self.pool.num_pages_needed(row.table, len(tokens))
        available = self.pool.num_available_pages
        try:
            copied = self.pool.append(row.table, len(tokens))
        except PoolExhausted as error:
            refusal = (error.num_needed_pages, error.num_available_pages)
        else:
            refusal = None
        if refusal is not None:
            assert refusal == (needed, available)
            assert needed > available
            assert before == (self.picture(), repr(row.table), list(row.table.page_hashes))
            self.num_refused += 1
            return
        assert available - self.pool.num_available_pages == needed
        if copied is not None:
            source = self.memory[copied.src_page_id]
            self.memory[copied.dst_page_id][: copied.num_tokens] = source[: copied.num_tokens]
        start = len(row.tokens)
        row.tokens += tokens
        for position in range(start, len(row.tokens)):
            page_id, offset = divmod(row.table.slot(position), self.page_size)
            self.memory[page_id][offset] = tuple(row.tokens[: position + 1])

    def look_ahead(self, row: Row) -> None:
        """Room for one token more that is taken back."""
        if not self.pool.has_room(row.table, 1) and (row.table.num_slack_tokens or not self.pool.are_next_free(1)):
            return
        before = (self.picture(), repr(row.table), list(row.table.page_hashes))
        assert self.pool.append(row.table, 1) is None
        self.pool.undo_append(row.table)
        assert before == (self.picture(), repr(row.table), list(row.table.page_hashes))

    def commit(self, row: Row) -> None:
        for committed in self.pool.commit(row.table, row.tokens):
            store = self.host.begin_store(committed)
            if store is not None:
                self.host_memory[store.host_page_id] = list(self.memory[committed.page_id])
                self.host.finish_store(store, 0.25)

    def fork(self, row: Row) -> None:
        self.rows[self.next_seq_id] = Row(self.pool.fork(row.table, self.next_seq_id), list(row.tokens))
        self.next_seq_id += 1

    def truncate(self, row: Row, num_tokens: int) -> None:
        self.pool.truncate(row.table, num_tokens)
        del row.tokens[num_tokens:]

    def slide(self, row: Row, first_position: int) -> None:
        self.pool.slide(row.table, first_position)

    def free(self, seq_id: int) -> None:
        self.pool.release(self.rows.pop(seq_id).table)

    def evict(self, page_ids: list[int]) -> None:
        assert self.pool.evict(page_ids) == len(self.findable.keys() & set(page_ids))

    def exhaust(self) -> None:
        """Ask for one page more than there is."""
        before = self.picture()
        try:
            take(self.pool, self.pool.num_available_pages + 1, seq_id=-5)
        except PoolExhausted:
            self.refuse(before)
        else:
            raise AssertionError("the pool gave more pages than it has")

    # --- the reference ---

    def picture(self) -> tuple[object, ...]:
        """All that an operation that failed must leave as it was."""
        states = [state_of(self.pool, page_id) for page_id in range(self.pool.num_pages)]
        return states, reuse_order(self.pool), self.pool.counts(), list(self.pool.events)

    def refuse(self, before: tuple[object, ...]) -> None:
        self.num_refused += 1
        assert self.picture() == before

    def expected_hit(self, tokens: list[int]) -> int:
        """The prefix look-up by brute force over all findable pages."""
        prefixes = set(self.findable.values())
        hit = 0
        while hit + self.page_size < len(tokens) and tuple(tokens[: hit + self.page_size]) in prefixes:
            hit += self.page_size
        return hit

    def expect_reason(self, tokens: list[int], hit: int, reason: PrefixEnd) -> None:
        """The explanation by brute force."""
        wanted = tokens[hit : hit + self.page_size]
        if hit + self.page_size >= len(tokens):
            assert reason == PrefixEnd(len(tokens), hit, self.page_size, is_all=True)
            return
        stop = hit + self.page_size
        rivals = [
            held[hit:] for held in self.findable.values() if len(held) == stop and list(held[:hit]) == tokens[:hit]
        ]
        if not rivals:
            assert reason == PrefixEnd(len(tokens), hit, self.page_size)
            return
        equal = [next(i for i, (a, b) in enumerate(zip(wanted, r, strict=True)) if a != b) for r in rivals]
        most = max(equal)
        likest = {rival[most] for rival, count in zip(rivals, equal, strict=True) if count == most}
        assert reason in [PrefixEnd(len(tokens), hit, self.page_size, most, each) for each in likest]

    def follow_events(self) -> None:
        """Replay what the pool says it did on plain lists: slow, obvious, and independent of its links."""
        for event in self.pool.events:
            match event:
                case pages.PageAllocated(_, page_id):
                    assert self.refs[page_id] == 0
                    assert page_id not in self.findable
                    assert self.order.pop(0) == page_id
                    self.refs[page_id] = 1
                case pages.PageShared(_, page_id, ref_count):
                    self.refs[page_id] += 1
                    assert self.refs[page_id] == ref_count
                    if ref_count == 1:
                        self.order.remove(page_id)
                case pages.PageFreed(_, page_id, ref_count, is_findable):
                    self.refs[page_id] -= 1
                    assert self.refs[page_id] == ref_count
                    assert is_findable == (page_id in self.findable)
                    if ref_count == 0:
                        self.order.append(page_id)
                case pages.PageCopied(_, src_page_id, dst_page_id, _):
                    assert self.refs[src_page_id] > 1
                    assert self.refs[dst_page_id] == 1
                case pages.PageEvicted(committed) if committed.tier is pages.Tier.DEVICE:
                    del self.findable[committed.page_id]
                case pages.PageCommitted(page_id, tier=pages.Tier.DEVICE):
                    held = self.memory[page_id][-1]
                    assert held is not None
                    assert held[-self.page_size :] == event.token_ids
                    self.findable[page_id] = held
                case _:
                    pass
        self.pool.events.clear()

    def check(self) -> None:
        """The books are in order and agree with the reference."""
        self.follow_events()
        self.pool.check(row.table for row in self.rows.values())
        self.host.check()
        assert reuse_order(self.pool) == self.order

    def verify(self) -> None:
        """`check`, and all states and every token read back from where the tables point."""
        self.check()
        held = Counter(page_id for row in self.rows.values() for page_id in row.table.page_ids if page_id)
        for page_id in range(1, self.pool.num_pages):
            assert state_of(self.pool, page_id) == self._expected_state(page_id, held[page_id])
        for page_id, prefix in self.findable.items():
            self._verify_page(self.memory[page_id], prefix)
        for row in self.rows.values():
            assert row.table.num_tokens == len(row.tokens)
            self._verify_row(row)

    def _expected_state(self, page_id: int, num_owners: int) -> str:
        assert self.refs[page_id] == num_owners
        if num_owners:
            return "used" if num_owners == 1 else "shared"
        return "cached" if page_id in self.findable else "free"

    def _verify_page(self, slots: list[Prefix | None], prefix: Prefix) -> None:
        """A findable page must still hold, whole, what it was committed with."""
        start = len(prefix) - self.page_size
        assert slots == [prefix[: start + offset + 1] for offset in range(self.page_size)]

    def _verify_row(self, row: Row) -> None:
        for position in range(row.table.first_held_position, len(row.tokens)):
            page_id, offset = divmod(row.table.slot(position), self.page_size)
            held = self.memory[page_id][offset]
            assert held is not None
            assert len(held) == position + 1
            assert held[-1] == row.tokens[position]
        if row.table.num_held_tokens:
            page_id, offset = divmod(row.table.slot(len(row.tokens) - 1), self.page_size)
            assert self.memory[page_id][offset] == tuple(row.tokens)


def random_operation(world: PoolWorld, rng: random.Random) -> None:
    """One operation; few distinct tokens, so that prefixes often meet."""
    kind = rng.random()
    if not world.rows or (kind < 0.15 and len(world.rows) < 8):
        world.admit([rng.randrange(2) for _ in range(rng.randint(1, 5 * world.page_size))])
        return
    seq_id = rng.choice(list(world.rows))
    row = world.rows[seq_id]
    if kind < 0.5:
        world.append(row, [rng.randrange(2) for _ in range(rng.randint(0, world.page_size + 1))])
        if kind < 0.4:
            world.commit(row)
    elif kind < 0.58 and len(world.rows) < 8:
        world.fork(row)
    elif kind < 0.7:
        world.truncate(row, rng.randint(row.table.first_held_position, len(row.tokens)))
    elif kind < 0.76:
        world.slide(row, rng.randint(0, len(row.tokens)))
    elif kind < 0.8:
        world.evict([rng.randrange(1, world.pool.num_pages)])
    elif kind < 0.82:
        world.exhaust()
    elif kind < 0.822:
        forget_cached(world.pool)
    else:
        world.free(seq_id)
