from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.cache.paged.free_list import FreeList
from engine.cache.paged.pages import PageState, PoolCounts
from engine.cache.paged.pool import DuplicatePolicy, PagePool
from engine.cache.paged.pool_errors import PoolCorrupted, PoolExhausted, PoolMisuse
from engine.cache.paged.prefix import encode_token_ids, hash_page, num_equal_tokens
from engine.cache.paged.table import PageTable
from engine.errors import InputError
from engine.wire.page_events import (
    CacheCleared,
    EvictReason,
    PageAllocated,
    PageCommitted,
    PageCopied,
    PageEvicted,
    PageFreed,
    PageShared,
    PrefixHit,
    PrefixMiss,
    Tier,
)
from engine.wire.prefix_match import AllFullPagesHit, NothingFollows, TokensDiffer, num_hashable_pages


def _load_soak() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "pool_soak.py"
    spec = importlib.util.spec_from_file_location("pool_soak", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pool_soak"] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


pool_soak = _load_soak()


def start(pool: PagePool, seq_id: int, tokens: list[int]) -> PageTable:
    """Admit a prompt as the engine does: take the hits, make room for the rest, compute it, commit it."""
    table = pool.open_table(seq_id)
    match = pool.match_prefix(tokens)
    pool.adopt(table, match, len(tokens) - match.num_hit_tokens)
    pool.append(table, len(tokens) - match.num_hit_tokens)
    pool.commit(table, tokens)
    pool.check()
    return table


def decode(pool: PagePool, table: PageTable, tokens: list[int], token_id: int) -> None:
    tokens.append(token_id)
    pool.append(table, 1)
    pool.commit(table, tokens)


# --- construction ---


@pytest.mark.parametrize("page_size", [2**exponent for exponent in range(11)])
def test_every_power_of_two_is_a_page_size(page_size: int) -> None:
    assert PagePool(2, page_size).page_size == page_size


@pytest.mark.parametrize("page_size", [0, -1, -16, 3, 12, 1023, 2048])
def test_other_page_sizes_are_refused(page_size: int) -> None:
    with pytest.raises(InputError, match="power of two from 1 to 1024"):
        PagePool(10, page_size)


@pytest.mark.parametrize("num_pages", [1, 0, -4, 2**31])
def test_impossible_pool_sizes_are_refused(num_pages: int) -> None:
    with pytest.raises(InputError, match="is impossible"):
        PagePool(num_pages)


def test_a_new_pool_is_free_but_for_the_null_page() -> None:
    pool = PagePool(4)
    assert pool.reuse_order() == [1, 2, 3]
    assert pool.counts() == PoolCounts(num_free=3, num_cached=0, num_used=0, num_shared=0)
    assert [pool.state(page_id) for page_id in range(2)] == [PageState.NULL, PageState.FREE]


# --- states, order, failure ---


def test_a_page_goes_through_all_states() -> None:
    pool = PagePool(3, 2)
    table = start(pool, 0, [1, 2])
    assert pool.state(1) is PageState.USED
    fork = pool.fork(table, 1)
    assert (pool.state(1), pool.ref_count(1)) == (PageState.SHARED, 2)
    pool.release(table)
    assert pool.state(1) is PageState.USED
    pool.release(fork)
    assert pool.state(1) is PageState.CACHED
    assert pool.counts() == PoolCounts(num_free=1, num_cached=1, num_used=0, num_shared=0)
    pool.evict([1])
    assert pool.state(1) is PageState.FREE


def test_pages_are_released_last_first() -> None:
    pool = PagePool(6, 2)
    table = start(pool, 0, [1, 2, 3, 4, 5])
    pool.release(table)
    assert pool.reuse_order() == [4, 5, 3, 2, 1]
    assert (table.page_ids, table.num_tokens, table.page_hashes) == ([], 0, [])


@pytest.mark.parametrize("num_pages", [4, 5, 10**9])
def test_an_allocation_that_fails_changes_nothing(num_pages: int) -> None:
    pool = PagePool(6, 2)
    held = pool.allocate(2, seq_id=0)
    pool.events.clear()
    with pytest.raises(PoolExhausted, match="only 3 can be taken") as caught:
        pool.allocate(num_pages, seq_id=1)
    assert (caught.value.num_needed_pages, caught.value.num_available_pages) == (num_pages, 3)
    assert pool.events == []
    assert pool.reuse_order() == [3, 4, 5]
    assert [pool.ref_count(page_id) for page_id in held] == [1, 1]
    assert pool.allocate(3, seq_id=1) == [3, 4, 5]


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
    order, table = pool.reuse_order(), pool.open_table(1)
    pool.events.clear()
    with pytest.raises(PoolExhausted) as caught:
        pool.adopt(table, match, num_new_tokens=3)
    assert (caught.value.num_needed_pages, caught.value.num_available_pages) == (2, 1)
    assert (pool.reuse_order(), pool.events, table.page_ids) == (order, [], [])
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
    order = pool.reuse_order()
    with pytest.raises(PoolMisuse, match="Page 3 is free"):
        pool.share([1, 3], seq_id=1)
    with pytest.raises(PoolMisuse, match="Page 3 is not in use"):
        pool.free([3, 1], seq_id=1)
    with pytest.raises(PoolMisuse, match="twice"):
        pool.free([1, 1], seq_id=0)
    with pytest.raises(PoolMisuse, match="has tokens already"):
        pool.adopt(table, pool.match_prefix([1, 2, 3]))
    stale = pool.match_prefix([1, 2, 3])
    pool.evict([1])
    with pytest.raises(PoolMisuse, match="changed since"):
        pool.adopt(pool.open_table(1), stale)
    assert pool.reuse_order() == order
    pool.check([table])


def test_the_null_page_is_never_counted_taken_or_freed() -> None:
    pool = PagePool(6, 2)
    pool.share([0], seq_id=0)
    pool.free([0, 0], seq_id=0)
    assert (pool.ref_count(0), pool.state(0), pool.evict([0])) == (0, PageState.NULL, 0)
    assert 0 not in pool.allocate(5, seq_id=0)
    pool.check()


# --- fork, truncate, slide ---


def test_a_fork_shares_everything_and_the_first_writer_copies_the_partial_page() -> None:
    pool = PagePool(9, 4)
    table = start(pool, 0, [1, 2, 3, 4, 5, 6])
    fork = pool.fork(table, 1)
    assert fork.page_ids == [1, 2]
    assert pool.append(table, 1) == PageCopied(0, src_page_id=2, dst_page_id=3, num_tokens=2)
    assert (table.page_ids, fork.page_ids) == ([1, 3], [1, 2])
    assert pool.append(fork, 1) is None  # the page is its own by now
    pool.check([table, fork])


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
    assert pool.reuse_order()[-2:] == [2, 1]
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


# --- the prefix cache ---


@pytest.mark.parametrize(
    ("num_tokens", "page_size", "expected"),
    [(128, 128, 0), (129, 128, 1), (0, 16, 0), (1, 1, 0), (2, 1, 1), (16, 16, 0), (17, 16, 1), (33, 16, 2)],
)
def test_the_last_token_is_never_hashable(num_tokens: int, page_size: int, expected: int) -> None:
    """MAX's rule at page size 128, and vLLM's limit of num_tokens - 1 at any other."""
    assert num_hashable_pages(num_tokens, page_size) == expected
    pool = PagePool(80, page_size)
    tokens = list(range(num_tokens))
    start(pool, 0, [*tokens, 7])
    assert len(pool.match_prefix(tokens).page_ids) == expected


def test_an_aligned_prompt_that_is_cached_whole_computes_its_last_page_again() -> None:
    pool = PagePool(9, 4)
    start(pool, 0, list(range(8)))
    match = pool.match_prefix(list(range(8)))
    assert (match.num_hit_tokens, match.num_tokens) == (4, 8)
    assert pool.explain(match) == AllFullPagesHit(num_tail_tokens=4)


def test_why_not_reused() -> None:
    pool = PagePool(20, 4)
    start(pool, 0, [1, 2, 3, 4, 5, 6, 7, 8])
    start(pool, 1, [1, 2, 3, 4, 5, 0, 7, 8])
    start(pool, 2, [9, 9, 9, 9])

    def why(*tokens: int, max_candidates: int = 64) -> object:
        return pool.explain(pool.match_prefix(tokens), max_candidates)

    assert why(1, 2, 3, 4, 5, 6, 7, 0, 0) == TokensDiffer(position=7, num_floor_tokens=3, is_exact=True)
    assert why(1, 2, 3, 4, 5, 0, 1, 1, 1) == TokensDiffer(position=6, num_floor_tokens=2, is_exact=True)
    assert why(1, 2, 0, 4, 5) == TokensDiffer(position=2, num_floor_tokens=2, is_exact=True)
    assert why(8, 8, 8, 8, 8) == TokensDiffer(position=0, num_floor_tokens=0, is_exact=True)
    assert why(9, 9, 9, 9, 9, 9, 9, 9, 9) == NothingFollows(position=4)
    assert why(1, 2, 3, 4, 5) == AllFullPagesHit(num_tail_tokens=1)
    assert why(1) == AllFullPagesHit(num_tail_tokens=1)
    assert why(1, 2, 3, 4, 5, 6, 7, 0, 0, max_candidates=1) == TokensDiffer(5, 1, is_exact=False)
    assert PagePool(9, 4).explain(PagePool(9, 4).match_prefix([1, 2, 3, 4, 5])) == NothingFollows(position=0)


def test_children_are_found_again_when_their_parent_comes_back_in_another_page() -> None:
    pool = PagePool(20, 2)
    table = start(pool, 0, [1, 2, 3, 4])
    pool.evict([table.page_ids[0]])
    pool.check()
    start(pool, 1, [1, 2])
    match = pool.match_prefix([1, 2, 3, 9, 9])
    assert pool.explain(match) == TokensDiffer(position=3, num_floor_tokens=1, is_exact=True)
    assert pool.match_prefix([1, 2, 3, 4, 5]).num_hit_tokens == 4


def test_hashes_are_the_same_in_every_process_and_pinned() -> None:
    assert encode_token_ids([1, -1, 2**31 - 1]) == b"\x01\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f"
    first = hash_page(bytes(16), encode_token_ids([1, 2, 3, 4]))
    assert first.hex() == "f23680cf9d0cdff61c7fe464c491f63b"
    assert hash_page(first, encode_token_ids([5, 6, 7, 8])).hex() == "cd5c5aac5f9c36b751008bf447ac9a57"
    assert hash_page(bytes(16), encode_token_ids([5, 6, 7, 8])) != hash_page(first, encode_token_ids([5, 6, 7, 8]))


@pytest.mark.parametrize("token_id", [2**31, -(2**31) - 1, 2**80])
def test_a_token_id_outside_of_32_bits_is_refused(token_id: int) -> None:
    with pytest.raises(InputError, match="32 bits"):
        PagePool(3).match_prefix([0, token_id])


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ([], [1], 0),
        ([1, 2], [1, 2], 2),
        ([1, 2, 3], [1, 2], 2),
        ([256, 1], [512, 1], 0),
        ([1, 2, 3], [1, 2, 2**24 + 3], 2),
    ],
)
def test_equal_tokens_are_counted_in_tokens(left: list[int], right: list[int], expected: int) -> None:
    assert num_equal_tokens(encode_token_ids(left), encode_token_ids(right)) == expected


def test_pages_with_the_same_hash_by_accident_are_never_confused() -> None:
    pool = PagePool(9, 2, page_hasher=lambda parent_hash, token_bytes: b"always the same!")
    first, second = start(pool, 0, [1, 2, 3, 4]), start(pool, 1, [5, 6])
    assert [pool.entry(page_id) is not None for page_id in first.page_ids + second.page_ids] == [True, False, False]
    assert pool.match_prefix([1, 2, 0]).num_hit_tokens == 2
    assert pool.match_prefix([5, 6, 0]).num_hit_tokens == 0
    assert pool.match_prefix([1, 2, 1, 2, 0]).num_hit_tokens == 2  # equal tokens after another prefix
    pool.check([first, second])


def test_commit_needs_the_tokens_of_every_full_page_and_the_right_ones() -> None:
    pool = PagePool(9, 2)
    table = pool.open_table(0)
    pool.append(table, 4)
    with pytest.raises(InputError, match="3 token ids cannot describe 2 full pages"):
        pool.commit(table, [1, 2, 3])
    fork = pool.fork(table, 1)
    pool.commit(table, [1, 2, 3, 4])
    assert pool.commit(fork, [1, 2, 3, 4]) == []
    assert fork.page_hashes == table.page_hashes
    fork.page_hashes.clear()
    with pytest.raises(PoolMisuse, match="committed with other tokens"):
        pool.commit(fork, [1, 2, 0, 0])


def test_reset_while_nothing_is_in_use_is_one_event() -> None:
    pool = PagePool(9, 2)
    pool.release(start(pool, 0, [1, 2, 3, 4]))
    hashes = {entry.page_hash for page_id in (1, 2) if (entry := pool.entry(page_id))}
    assert pool.reset_prefix_cache() == 2
    event = pool.events[-1]
    assert isinstance(event, CacheCleared)
    assert (event.tier, set(event.page_hashes)) == (Tier.DEVICE, hashes)
    assert pool.counts().num_cached == 0
    assert pool.match_prefix([1, 2, 3]).num_hit_tokens == 0
    pool.check()


def test_reset_leaves_pages_in_use_findable() -> None:
    pool = PagePool(9, 2)
    table = start(pool, 0, [1, 2])
    pool.release(start(pool, 1, [3, 4]))
    assert pool.reset_prefix_cache() == 1
    event = pool.events[-1]
    assert isinstance(event, PageEvicted)
    assert event.reason is EvictReason.RESET
    assert pool.match_prefix([1, 2, 0]).num_hit_tokens == 2
    assert pool.match_prefix([3, 4, 0]).num_hit_tokens == 0
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
    assert pool.explain(match1) == TokensDiffer(position=10, num_floor_tokens=2, is_exact=True)
    request1 = start(pool, 1, prompt1)
    assert as_documented(request1.page_ids) == [0, 1, 5, 6]

    pool.release(request0)
    assert as_documented(pool.reuse_order()) == [7, 8, 9, 4, 3, 2]
    pool.release(request1)
    assert as_documented(pool.reuse_order()) == [7, 8, 9, 4, 3, 2, 6, 5, 1, 0]

    prompt2 = prompt0[:12] + list(range(17))
    request2 = pool.open_table(2)
    match2 = pool.match_prefix(prompt2)
    pool.adopt(request2, match2, 17)
    assert as_documented(pool.reuse_order()) == [7, 8, 9, 4, 3, 6, 5]
    pool.events.clear()
    pool.append(request2, 17)
    assert as_documented(request2.page_ids) == [0, 1, 2, 7, 8, 9, 4, 3]
    evicted = [event.committed.page_id for event in pool.events if isinstance(event, PageEvicted)]
    assert as_documented(evicted) == [3]
    assert as_documented(pool.reuse_order()) == [6, 5]
    pool.check([request2])


def two_equal_requests(policy: DuplicatePolicy) -> tuple[PagePool, PageTable, PageTable]:
    """Blocks of 4. Request 1 repeats the six tokens of request 0, which is in its third block by then."""
    pool = PagePool(11, 4, duplicates=policy)
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
    pool, request0, request1 = two_equal_requests(DuplicatePolicy.KEEP_BOTH)
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
    pool, request0, request1 = two_equal_requests(DuplicatePolicy.REPLACE)
    assert as_documented(request0.page_ids) == [0, 1, 2]
    assert as_documented(request1.page_ids) == [0, 1]
    assert pool.state(4) is PageState.FREE
    assert as_documented(pool.reuse_order())[-1] == 3
    assert pool.ref_count(2) == 2
    assert request1.page_hashes == request0.page_hashes


def test_the_children_of_a_duplicate_are_known_whichever_copy_goes_first() -> None:
    pool, request0, request1 = two_equal_requests(DuplicatePolicy.KEEP_BOTH)
    decode_to = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    pool.append(request0, 3)
    pool.commit(request0, decode_to)
    pool.evict([request0.page_ids[1]])
    match = pool.match_prefix([*decode_to[:10], 0, 0, 0])
    assert pool.explain(match) == TokensDiffer(position=10, num_floor_tokens=2, is_exact=True)
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
    pool.allocate(3, seq_id=2)
    assert pool.events == [
        PageAllocated(2, 2),
        PageAllocated(2, 3),
        PageEvicted(entry, EvictReason.ROOM),
        PageAllocated(2, 1),
    ]


# --- check() finds what it is for ---


def _lose_a_page(pool: PagePool, table: PageTable) -> None:
    pool._free.pop()


def _free_too_early(pool: PagePool, table: PageTable) -> None:
    pool._free.push(table.page_ids[0])


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


def _cut_a_link(pool: PagePool, table: PageTable) -> None:
    pool._free._prev[5] = 3


def _cut_the_family(pool: PagePool, table: PageTable) -> None:
    pool._index._orphans.clear()


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
        (_cut_a_link, "points back to"),
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
    pool._free._next[3] = 3
    with pytest.raises(PoolCorrupted):
        pool.check()


def test_a_free_list_that_is_empty_gives_nothing() -> None:
    free = FreeList(1, 2)
    assert (free.pop(), len(free), list(free)) == (1, 0, [])
    with pytest.raises(IndexError):
        free.pop()
    assert len(free) == 0


# --- against the reference ---

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=20)


class PoolMachine(RuleBasedStateMachine):
    """Everything the pool and the host index can do, against `pool_soak.PoolWorld`'s plain lists and memory."""

    @initialize(
        num_pages=st.sampled_from((2, 5, 9, 14)),
        page_size=st.sampled_from((1, 2, 4)),
        duplicates=st.sampled_from(DuplicatePolicy),
        num_host_pages=st.sampled_from((1, 4)),
    )
    def build(self, num_pages: int, page_size: int, duplicates: DuplicatePolicy, num_host_pages: int) -> None:
        self.world = pool_soak.PoolWorld(num_pages, page_size, duplicates, num_host_pages)

    def row(self, data: st.DataObject) -> object:
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
    def reset(self) -> None:
        self.world.pool.reset_prefix_cache()

    @rule()
    def clear_host(self) -> None:
        self.world.host.clear()

    @invariant()
    def everything_agrees(self) -> None:
        self.world.verify()


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(
    max_examples=120, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_a_soak_of_100_000_operations() -> None:
    result = pool_soak.soak(100_000, seed=20, verify_every=50)
    assert result.num_refused > 1_000  # failure was exercised, too
