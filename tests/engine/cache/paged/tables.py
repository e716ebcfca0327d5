"""Page tables filled as the engine fills them."""

from __future__ import annotations

from engine.cache.paged.pool import PagePool
from engine.cache.paged.table import PageTable


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
