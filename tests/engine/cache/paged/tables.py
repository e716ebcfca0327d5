"""Page tables filled as the engine fills them."""

from __future__ import annotations

from engine.cache.paged.host import HostIndex
from engine.cache.paged.pool import PagePool
from engine.cache.paged.table import PageTable
from engine.wire.pages import NULL_PAGE_ID


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


def take(pool: PagePool, num_pages: int, seq_id: int) -> list[int]:
    """Pages of a sequence that computes nothing."""
    table = pool.open_table(seq_id)
    pool.append(table, num_pages * pool.page_size)
    return table.page_ids


def state_of(pool: PagePool, page_id: int) -> str:
    """Whether a page is the null page, used, shared, cached or free."""
    if page_id == NULL_PAGE_ID:
        return "null"
    if count := pool.ref_count(page_id):
        return "used" if count == 1 else "shared"
    return "free" if pool.entry(page_id) is None else "cached"


def reuse_order(pages: PagePool | HostIndex) -> list[int]:
    """Free and cached pages in the order in which they will be taken."""
    return list(pages._free)


def forget_cached(pool: PagePool) -> None:
    """Nothing that no sequence holds can be found any more."""
    pool.evict(reuse_order(pool))
