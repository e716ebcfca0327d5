"""Tables over a pool: forks, truncation, windows, the published examples, events."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from engine.cache.paged.pool import PagePool, PoolMisuse
from engine.cache.paged.store import PageGroup, PageStore
from engine.cache.paged.table import PageTable
from engine.errors import InputError
from engine.wire.pages import (
    EvictReason,
    PageAllocated,
    PageCommitted,
    PageCopied,
    PageEvicted,
    PageFreed,
    PageShared,
    PrefixEnd,
    PrefixHit,
    PrefixMiss,
)
from tests.engine.cache.paged.tables import decode, reuse_order, start, state_of, take


def test_a_fork_shares_everything_and_the_first_writer_copies_the_partial_page() -> None:
    pool = PagePool(9, 4)
    table = start(pool, 0, [1, 2, 3, 4, 5, 6])
    fork = pool.fork(table, 1)
    assert fork.page_ids == [1, 2]
    assert pool.append(table, 1) == PageCopied(0, src_page_id=2, dst_page_id=3, num_tokens=2)
    assert (table.page_ids, fork.page_ids) == ([1, 3], [1, 2])
    assert pool.append(fork, 1) is None  # the page is its own by now
    pool.check([table, fork])


def test_room_that_was_taken_for_one_token_goes_back_to_where_it_was() -> None:
    pool = PagePool(6, 2)
    one, other, full = (pool.open_table(seq_id) for seq_id in range(3))
    pool.append(full, 3)
    pool.append(one, 2)
    before = reuse_order(pool), list(pool.events), pool.counts(), repr(one), repr(other)
    for table in (one, other):
        pool.append(table, 1)
    with pytest.raises(PoolMisuse, match="cannot be put back"):
        pool.undo_append(one)  # another page was taken since
    for table in (other, one):
        pool.undo_append(table)
    assert (reuse_order(pool), list(pool.events), pool.counts(), repr(one), repr(other)) == before
    pool.append(full, 1)
    pool.commit(full, [1, 2, 3, 4])
    pool.release(full)
    assert pool.are_next_free(2)
    assert not pool.are_next_free(3)
    pool.append(other, 4)
    assert not pool.are_next_free(1)
    pool.append(one, 1)  # of a page that could be found: that is forgotten
    with pytest.raises(PoolMisuse, match="cannot be put back"):
        pool.undo_append(one)
    pool.check([one, other, full])


def test_a_full_last_page_needs_no_copy() -> None:
    pool = PagePool(9, 4)
    table = start(pool, 0, [1, 2, 3, 4])
    fork = pool.fork(table, 1)
    assert (pool.append(fork, 1), pool.append(table, 1)) == (None, None)
    assert (table.page_ids, fork.page_ids) == ([1, 3], [1, 2])


@pytest.mark.parametrize(
    ("num_tokens", "num_pages", "num_hashes"),
    [(9, 3, 2), (8, 2, 2), (7, 2, 1), (4, 1, 1), (3, 1, 0), (1, 1, 0), (0, 0, 0)],
)
def test_truncate_at_every_edge(num_tokens: int, num_pages: int, num_hashes: int) -> None:
    pool = PagePool(9, 4)
    table = start(pool, 0, list(range(9)))
    pool.truncate(table, num_tokens)
    assert (len(table.page_ids), len(table.page_hashes), table.num_tokens) == (num_pages, num_hashes, num_tokens)
    pool.check([table])


@pytest.mark.parametrize("num_tokens", [-1, 10])
def test_truncate_to_an_impossible_length_is_refused(num_tokens: int) -> None:
    pool = PagePool(9, 4)
    table = start(pool, 0, list(range(9)))
    with pytest.raises(InputError, match="cannot be truncated"):
        pool.truncate(table, num_tokens)


def test_writing_into_a_truncated_committed_page_makes_its_old_tokens_unfindable() -> None:
    pool = PagePool(9, 4)
    table = start(pool, 0, [1, 2, 3, 4])
    pool.truncate(table, 2)
    assert pool.match_prefix([1, 2, 3, 4, 5]).num_hit_tokens == 4  # nothing was overwritten yet
    pool.events.clear()
    assert pool.append(table, 2) is None
    [evicted] = pool.events
    assert isinstance(evicted, PageEvicted)
    assert evicted.reason is EvictReason.OVERWRITE
    pool.commit(table, [1, 2, 7, 8])
    assert pool.match_prefix([1, 2, 3, 4, 5]).num_hit_tokens == 0
    assert pool.match_prefix([1, 2, 7, 8, 5]).num_hit_tokens == 4


def test_writing_into_a_truncated_page_that_another_sequence_reads_copies_it() -> None:
    pool = PagePool(9, 4)
    table = start(pool, 0, [1, 2, 3, 4])
    pool.truncate(table, 2)
    reader = start(pool, 1, [1, 2, 3, 4, 5])
    assert pool.append(table, 1) == PageCopied(0, 1, 3, 2)
    assert reader.page_ids == [1, 2]
    assert pool.match_prefix([1, 2, 3, 4, 5]).page_ids == (1,)
    pool.check([table, reader])


def test_slide_frees_whole_pages_before_the_window_last_first() -> None:
    pool = PagePool(9, 2)
    table = start(pool, 0, list(range(7)))
    pool.slide(table, 1)
    assert table.page_ids == [1, 2, 3, 4]
    pool.slide(table, 5)
    assert (table.page_ids, table.first_held_position) == ([0, 0, 3, 4], 4)
    assert reuse_order(pool)[-2:] == [2, 1]
    pool.slide(table, 2)  # a window never moves back
    assert table.num_slid_pages == 2
    pool.check([table])
    pool.release(table)
    pool.check([table])


def test_the_chain_of_hashes_goes_on_over_pages_that_slid_away_uncommitted() -> None:
    pool, plain = PagePool(9, 2), PagePool(9, 2)
    tokens = list(range(6))
    table = pool.open_table(0)
    pool.append(table, 6)
    pool.slide(table, 4)
    committed = pool.commit(table, tokens)
    assert table.page_hashes == start(plain, 0, tokens).page_hashes
    assert [entry.page_id for entry in committed] == [3]


def test_slide_and_truncate_refuse_what_is_not_there() -> None:
    pool = PagePool(9, 2)
    table = start(pool, 0, list(range(7)))
    with pytest.raises(InputError, match="cannot start at 8"):
        pool.slide(table, 8)
    pool.slide(table, 4)
    with pytest.raises(InputError, match="holds tokens up to 4 to 7"):
        pool.truncate(table, 3)
    pool.truncate(table, 4)
    assert table.page_ids == [0, 0]
    pool.append(table, 1)
    pool.check([table])


# --- the published examples ---


def as_documented(page_ids: list[int]) -> list[int]:
    """The document numbers blocks from 0 without the null block; page ids start at 1, so block = page_id - 1."""
    return [page_id - 1 for page_id in page_ids]


def test_vllms_walk_through_of_ten_blocks() -> None:
    """vLLM's design document on prefix caching, "Example": block size 4, ten blocks (a pool of 11 with null)."""
    pool = PagePool(11, 4)
    prompt0 = list(range(100, 115))
    request0 = start(pool, 0, prompt0)
    assert as_documented(request0.page_ids) == [0, 1, 2, 3]
    assert [pool.entry(page_id) is not None for page_id in request0.page_ids] == [True, True, True, False]

    tokens0 = prompt0.copy()
    decode(pool, request0, tokens0, 115)
    decode(pool, request0, tokens0, 116)
    assert as_documented(request0.page_ids) == [0, 1, 2, 3, 4]
    assert pool.entry(request0.page_ids[3]) is not None

    prompt1 = [*prompt0[:10], 7, 7, 7, 7]
    match1 = pool.match_prefix(prompt1)
    assert (as_documented(list(match1.page_ids)), match1.num_hit_tokens) == ([0, 1], 8)
    assert pool.explain(match1) == PrefixEnd(14, 8, 4, 2, 110)
    request1 = start(pool, 1, prompt1)
    assert as_documented(request1.page_ids) == [0, 1, 5, 6]

    pool.release(request0)
    assert as_documented(reuse_order(pool)) == [7, 8, 9, 4, 3, 2]
    pool.release(request1)
    assert as_documented(reuse_order(pool)) == [7, 8, 9, 4, 3, 2, 6, 5, 1, 0]

    prompt2 = prompt0[:12] + list(range(17))
    request2 = pool.open_table(2)
    match2 = pool.match_prefix(prompt2)
    pool.adopt(request2, match2, 17)
    assert as_documented(reuse_order(pool)) == [7, 8, 9, 4, 3, 6, 5]
    pool.events.clear()
    pool.append(request2, 17)
    assert as_documented(request2.page_ids) == [0, 1, 2, 7, 8, 9, 4, 3]
    evicted = [event.committed.page_id for event in pool.events if isinstance(event, PageEvicted)]
    assert as_documented(evicted) == [3]
    assert as_documented(reuse_order(pool)) == [6, 5]
    pool.check([request2])


def two_equal_requests(replaces: bool) -> tuple[PagePool, PageTable, PageTable]:
    """Blocks of 4. Request 1 repeats the six tokens of request 0, which is in its third block by then."""
    pool = PagePool(11, 4, replaces_duplicates=replaces)
    tokens0 = [1, 2, 3, 4, 5, 6]
    request0 = start(pool, 0, tokens0)
    tokens1 = tokens0.copy()
    decode(pool, request0, tokens0, 7)
    request1 = pool.open_table(1)
    match = pool.match_prefix(tokens1)
    decode(pool, request0, tokens0, 8)
    decode(pool, request0, tokens0, 9)
    pool.adopt(request1, match, 2)
    pool.append(request1, 2)
    decode(pool, request1, tokens1, 7)
    decode(pool, request1, tokens1, 8)
    pool.check([request0, request1])
    return pool, request0, request1


def test_vllm_keeps_both_copies_of_a_duplicate() -> None:
    pool, request0, request1 = two_equal_requests(replaces=False)
    assert as_documented(request0.page_ids) == [0, 1, 2]
    assert as_documented(request1.page_ids) == [0, 3]
    first, second = pool.entry(request0.page_ids[1]), pool.entry(request1.page_ids[1])
    assert first is not None
    assert second is not None
    assert first.page_hash == second.page_hash
    lookup = [1, 2, 3, 4, 5, 6, 7, 8, 0]
    assert as_documented(list(pool.match_prefix(lookup).page_ids)) == [0, 1]
    pool.evict([first.page_id])
    assert as_documented(list(pool.match_prefix(lookup).page_ids)) == [0, 3]
    pool.evict([second.page_id])
    assert as_documented(list(pool.match_prefix(lookup).page_ids)) == [0]
    pool.check([request0, request1])


def test_max_replaces_a_duplicate_and_frees_it() -> None:
    pool, request0, request1 = two_equal_requests(replaces=True)
    assert as_documented(request0.page_ids) == [0, 1, 2]
    assert as_documented(request1.page_ids) == [0, 1]
    assert state_of(pool, 4) == "free"
    assert as_documented(reuse_order(pool))[-1] == 3
    assert pool.ref_count(2) == 2
    assert request1.page_hashes == request0.page_hashes


def test_the_children_of_a_duplicate_are_known_whichever_copy_goes_first() -> None:
    pool, request0, request1 = two_equal_requests(replaces=False)
    decode_to = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    pool.append(request0, 3)
    pool.commit(request0, decode_to)
    pool.evict([request0.page_ids[1]])
    match = pool.match_prefix([*decode_to[:10], 0, 0, 0])
    assert pool.explain(match) == PrefixEnd(13, 8, 4, 2, 11)
    pool.check([request0, request1])


# --- events ---


def test_events_tell_everything_in_order() -> None:
    pool = PagePool(4, 2)
    table = start(pool, 0, [1, 2, 3])
    entry = pool.entry(1)
    assert isinstance(entry, PageCommitted)
    assert entry.token_ids == (1, 2)
    assert pool.events == [PrefixMiss(0, 3), PageAllocated(0, 1), PageAllocated(0, 2), entry]
    pool.events.clear()
    other = start(pool, 1, [1, 2, 9])
    assert pool.events == [PrefixHit(1, 3, 2, (1,)), PageShared(1, 1, 2), PageAllocated(1, 3)]
    pool.events.clear()
    pool.release(table)
    pool.release(other)
    assert pool.events == [
        PageFreed(0, 2, 0, is_findable=False),
        PageFreed(0, 1, 1, is_findable=True),
        PageFreed(1, 3, 0, is_findable=False),
        PageFreed(1, 1, 0, is_findable=True),
    ]
    pool.events.clear()
    take(pool, 3, seq_id=2)
    assert pool.events == [
        PageAllocated(2, 2),
        PageAllocated(2, 3),
        PageEvicted(entry, EvictReason.ROOM),
        PageAllocated(2, 1),
    ]


def test_of_a_shared_page_that_is_written_anew_the_tokens_in_it_are_copied() -> None:
    pool = PagePool(9, 4)
    table = start(pool, 0, [1, 2, 3, 4, 5, 6])
    fork = pool.fork(table, 1)
    assert pool.make_writable(fork, [0, 1]) == [PageCopied(1, 1, 3, num_tokens=4), PageCopied(1, 2, 4, num_tokens=2)]
    assert pool.make_writable(fork, [0, 1]) == []
    pool.check([table, fork])


@pytest.mark.parametrize("is_longer_first", [True, False])
def test_rows_that_several_refer_to_are_counted_once_less(is_longer_first: bool) -> None:
    """Of the last page the fork has one token less: sharing it saves what both have."""
    pool, layer = PagePool(9, 4), object()
    table = start(pool, 0, [1, 2, 3, 4, 5, 6])
    fork = pool.fork(table, 1)
    pool.truncate(fork, 5)
    tables = [table, fork] if is_longer_first else [fork, table]
    store = SimpleNamespace(page_size=4, groups=[PageGroup(pool, (layer,), None, tables)])  # type: ignore[arg-type]
    assert PageStore.shared_rows(store, layer) == 4 + 1  # type: ignore[arg-type]
    pool.release(fork)
    store.groups[0].tables.remove(fork)
    assert PageStore.shared_rows(store, layer) == 0  # type: ignore[arg-type]
