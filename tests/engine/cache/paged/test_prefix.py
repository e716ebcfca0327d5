"""Finding pages by what they hold: hashes, hits and misses with their reasons, equal pages, resets."""

from __future__ import annotations

import pytest

from engine.cache.paged.pool import PagePool, PoolMisuse
from engine.cache.paged.prefix import PrefixIndex, encode_token_ids, hash_page, num_equal_tokens, num_hashable_pages
from engine.cache.paged.table import PageTable
from engine.errors import InputError
from engine.wire.pages import (
    ROOT_HASH,
    PageCommitted,
    PrefixEnd,
    Tier,
)
from tests.engine.cache.paged.tables import start


def three_equal_pages() -> tuple[PagePool, list[PageTable]]:
    """Three sequences that computed the same tokens at once: pages 1, 2 and 3 hold them, the first is found."""
    pool = PagePool(8, 2)
    tables = [pool.open_table(seq_id) for seq_id in range(3)]
    for table in tables:
        pool.append(table, 2)
    for table in tables:
        pool.commit(table, [5, 6])
    return pool, tables


@pytest.mark.parametrize(
    ("removed", "found"), [((1,), 2), ((1, 2), 3), ((2,), 1), ((3,), 1), ((2, 1), 3), ((1, 2, 3), None)]
)
def test_of_equal_pages_the_oldest_that_is_left_is_found(removed: tuple[int, ...], found: int | None) -> None:
    pool, tables = three_equal_pages()
    assert [table.page_ids for table in tables] == [[1], [2], [3]]
    assert pool.match_prefix([5, 6, 7]).page_ids == (1,)
    for page_id in removed:
        assert pool.evict([page_id]) == 1
        pool.check(tables)
    assert pool.match_prefix([5, 6, 7]).page_ids == (() if found is None else (found,))


def test_the_index_finds_and_counts_equal_pages_in_their_order() -> None:
    index = PrefixIndex(8)
    tokens = encode_token_ids([5, 6])
    page_hash = hash_page(ROOT_HASH, tokens)
    for page_id in (4, 2, 6):
        index.add(PageCommitted(page_id, page_hash, ROOT_HASH, tokens, Tier.DEVICE))
    seen = []
    for _ in range(3):
        found = index.find(page_hash, ROOT_HASH, tokens)
        assert found is not None
        assert index.first(page_hash) is found
        seen.append((found.page_id, index.num_pages()))
        assert index.remove(found.page_id) is found
        assert index.faults() == []
    assert seen == [(4, 3), (2, 2), (6, 1)]
    assert index.find(page_hash, ROOT_HASH, tokens) is None


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
    assert pool.explain(match) == PrefixEnd(8, 4, 4, is_all=True)


def test_why_not_reused() -> None:
    pool = PagePool(20, 4)
    start(pool, 0, [1, 2, 3, 4, 5, 6, 7, 8])
    start(pool, 1, [1, 2, 3, 4, 5, 0, 7, 8])
    start(pool, 2, [9, 9, 9, 9])

    def why(*tokens: int, max_candidates: int = 64) -> object:
        return pool.explain(pool.match_prefix(tokens), max_candidates)

    assert why(1, 2, 3, 4, 5, 6, 7, 0, 0) == PrefixEnd(9, 4, 4, 3, 8)
    assert why(1, 2, 3, 4, 5, 0, 1, 1, 1) == PrefixEnd(9, 4, 4, 2, 7)
    assert why(1, 2, 0, 4, 5) == PrefixEnd(5, 0, 4, 2, 3)
    assert why(8, 8, 8, 8, 8) == PrefixEnd(5, 0, 4, 0, 9)
    assert why(9, 9, 9, 9, 9, 9, 9, 9, 9) == PrefixEnd(9, 4, 4)
    assert why(1, 2, 3, 4, 5) == PrefixEnd(5, 4, 4, is_all=True)
    assert why(1) == PrefixEnd(1, 0, 4, is_all=True)
    assert why(1, 2, 3, 4, 5, 6, 7, 0, 0, max_candidates=1) == PrefixEnd(9, 4, 4, 1, 0, is_exact=False)
    assert PagePool(9, 4).explain(PagePool(9, 4).match_prefix([1, 2, 3, 4, 5])) == PrefixEnd(5, 0, 4)


def test_children_are_found_again_when_their_parent_comes_back_in_another_page() -> None:
    pool = PagePool(20, 2)
    table = start(pool, 0, [1, 2, 3, 4])
    pool.evict([table.page_ids[0]])
    pool.check()
    start(pool, 1, [1, 2])
    match = pool.match_prefix([1, 2, 3, 9, 9])
    assert pool.explain(match) == PrefixEnd(5, 2, 2, 1, 4)
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
