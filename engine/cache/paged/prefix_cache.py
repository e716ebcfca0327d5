"""The prefix cache of a pool: finds full pages by their tokens and all tokens before them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

from engine.cache.paged.pages import Pages, PoolExhausted, PoolMisuse
from engine.cache.paged.prefix import HashPage, encode_token_ids, hash_page, num_equal_tokens
from engine.cache.paged.table import PageTable
from engine.errors import InputError
from engine.wire.page_events import (
    NULL_PAGE_ID,
    ROOT_HASH,
    AllFullPagesHit,
    NothingFollows,
    PageCommitted,
    PageEvent,
    PrefixHit,
    PrefixMatch,
    PrefixMiss,
    Tier,
    TokensDiffer,
    WhyNotReused,
    num_hashable_pages,
)

_DEVICE = Tier.DEVICE  # a constant, because Python 3.11 takes ten times as long to read an enumeration's member


class DuplicatePolicy(Enum):
    """What to do when a page becomes full whose tokens another page already holds."""

    KEEP_BOTH = "keep both"  # vLLM V1: tables only ever grow; both copies are findable
    REPLACE = "replace and free"  # MAX: the table takes the older page and the newer one is freed


class PrefixCache(Pages):
    """The pages of a pool, findable by prefix. `page_hasher` can be replaced to test accidental equal hashes."""

    __slots__ = ("_hash_page", "duplicates")

    def __init__(
        self,
        num_pages: int,
        page_size: int = 16,
        *,
        duplicates: DuplicatePolicy = DuplicatePolicy.KEEP_BOTH,
        events: list[PageEvent] | None = None,
        page_hasher: HashPage = hash_page,
    ) -> None:
        """Raises InputError for a page size that is no power of two from 1 to 1,024 and for fewer than 2 pages."""
        super().__init__(num_pages, page_size, events)
        self.duplicates = duplicates
        self._hash_page = page_hasher

    def findable(self) -> Iterator[PageCommitted]:
        """Every page that a prompt can find, copies too."""
        return (entry for page_id in range(self.num_pages) if (entry := self._index.entry(page_id)) is not None)

    def match_prefix(self, token_ids: Sequence[int]) -> PrefixMatch:
        """The longest run of findable pages that starts this prompt, never with its last token. Changes nothing."""
        token_bytes = encode_token_ids(token_ids)
        width = 4 * self.page_size
        find, page_hasher = self._index.find, self._hash_page
        page_ids: list[int] = []
        page_hashes: list[bytes] = []
        parent_hash = ROOT_HASH
        for start in range(0, num_hashable_pages(len(token_ids), self.page_size) * width, width):
            page_tokens = token_bytes[start : start + width]
            page_hash = page_hasher(parent_hash, page_tokens)
            found = find(page_hash, parent_hash, page_tokens)
            if found is None:
                break
            page_ids.append(found.page_id)
            page_hashes.append(page_hash)
            parent_hash = page_hash
        return PrefixMatch(self.page_size, tuple(page_ids), tuple(page_hashes), token_bytes)

    def recommit(self, table: PageTable, token_ids: Sequence[int]) -> None:
        """Make the committed pages of a table findable again if they were evicted from the prefix cache meanwhile."""
        parent_hash, width = ROOT_HASH, self.page_size
        for number, page_hash in enumerate(table.page_hashes):
            page_id = table.page_ids[number]
            token_bytes = encode_token_ids(token_ids[number * width : (number + 1) * width])
            if page_id and self._index.entry(page_id) is None:
                entry = PageCommitted(page_id, page_hash, parent_hash, token_bytes, _DEVICE)
                self._index.add(entry)
                self.events.append(entry)
            parent_hash = page_hash

    def explain(self, match: PrefixMatch, max_candidates: int = 64) -> WhyNotReused:
        """Why no more of a prompt was reused. To be called before the pool changes.

        Compares the first page that missed with up to `max_candidates` pages that follow the same prefix, the newest
        first, so that its cost has a bound.
        """
        num_hits = len(match.page_ids)
        if num_hits == match.num_hashable_pages:
            return AllFullPagesHit(match.num_tokens - match.num_hit_tokens)
        wanted = match.page_tokens(num_hits)
        num_equal = num_seen = 0
        for child in self._index.children(match.last_hash):
            if num_seen == max_candidates:
                return TokensDiffer(match.num_hit_tokens + num_equal, num_equal, is_exact=False)
            num_seen += 1
            num_equal = max(num_equal, num_equal_tokens(wanted, child.token_bytes))
        if not num_seen:
            return NothingFollows(match.num_hit_tokens)
        return TokensDiffer(match.num_hit_tokens + num_equal, num_equal, is_exact=True)

    def adopt(self, table: PageTable, match: PrefixMatch, num_new_tokens: int = 0) -> None:
        """Give an empty table the pages of a match, if the pages for `num_new_tokens` more are available as well.

        Raises PoolExhausted, having changed nothing, when they are not: cached pages that are hit can no longer be
        taken for new tokens. Raises PoolMisuse for a table with tokens and for a match that is out of date.
        """
        if table.num_tokens:
            raise PoolMisuse(f"Sequence {table.seq_id} has tokens already and cannot adopt a prefix.")
        for page_id, page_hash in zip(match.page_ids, match.page_hashes, strict=True):
            entry = self._index.entry(page_id)
            if entry is None or entry.page_hash != page_hash:
                raise PoolMisuse(f"Page {page_id} changed since the prefix was matched.")
        num_revived = sum(1 for page_id in match.page_ids if not self._refs[page_id])
        num_new_pages = -(-num_new_tokens // self.page_size)
        if num_revived + num_new_pages > len(self._free):
            raise PoolExhausted(num_new_pages, len(self._free) - num_revived)
        num_hit_tokens = match.num_hit_tokens
        found: PageEvent = PrefixMiss(table.seq_id, match.num_tokens)
        if match.page_ids:
            found = PrefixHit(table.seq_id, match.num_tokens, num_hit_tokens, match.page_ids)
        self.events.append(found)
        try:
            self._share_all(match.page_ids, table.seq_id)
        except BaseException:
            self.events.pop()
            raise
        table.page_ids.extend(match.page_ids)
        table.page_hashes.extend(match.page_hashes)
        table.num_tokens = num_hit_tokens

    def commit(self, table: PageTable, token_ids: Sequence[int]) -> list[PageCommitted]:
        """Make those full pages of a sequence findable whose K and V have been written since the last commit.

        `token_ids` are the sequence's tokens from position 0 on. Returns the pages that are new in the index, which the
        host tier copies. A page whose hash already belongs to other tokens ends the chain: it and the following pages
        stay unfindable. Raises InputError when there are fewer token ids than full pages need.
        """
        page_size = self.page_size
        first, stop = len(table.page_hashes), table.num_tokens // page_size
        if len(token_ids) < stop * page_size:
            raise InputError(f"{len(token_ids)} token ids cannot describe {stop} full pages of {page_size} tokens.")
        if first == stop:
            return []
        committed: list[PageCommitted] = []
        parent_hash = table.page_hashes[-1] if first else ROOT_HASH
        encoded, width = encode_token_ids(token_ids[first * page_size : stop * page_size]), 4 * page_size
        for page in range(first, stop):
            token_bytes = encoded[(page - first) * width : (page - first + 1) * width]
            page_hash = self._hash_page(parent_hash, token_bytes)
            twin = self._index.first(page_hash)
            if twin is not None and (twin.token_bytes != token_bytes or twin.parent_hash != parent_hash):
                break
            entry = PageCommitted(table.page_ids[page], page_hash, parent_hash, token_bytes, _DEVICE)
            if self._commit_page(table, page, entry, twin):
                committed.append(entry)
            table.page_hashes.append(page_hash)
            parent_hash = page_hash
        return committed

    def _commit_page(self, table: PageTable, page: int, entry: PageCommitted, twin: PageCommitted | None) -> bool:
        """Add a page to the index; returns whether this call did so. `twin` is the page that holds the same tokens
        already."""
        page_id = entry.page_id
        if page_id == NULL_PAGE_ID:
            return False  # it left the window or was evicted before it was committed; its hash continues the chain
        own = self._index.entry(page_id)
        if own is not None:
            if own.page_hash != entry.page_hash:
                raise PoolMisuse(f"Page {page_id} is committed with other tokens than those of {table}.")
            return False  # a fork that shares the page committed it first
        if twin is not None and self.duplicates is DuplicatePolicy.REPLACE:
            self._share_all([twin.page_id], table.seq_id)
            try:
                self._free_all([page_id], table.seq_id)
            except BaseException:
                self._free_all([twin.page_id], table.seq_id)
                raise
            table.page_ids[page] = twin.page_id
            return False
        self._index.add(entry)
        self.events.append(entry)
        return True
