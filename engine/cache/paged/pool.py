"""Which page is whose: the page tables of sequences over one pool, and the prefixes found in it. No K and no V.

Every operation costs O(1) per page that it touches; one that cannot be done raises before it changes anything. The
rules are those of vLLM V1's block pool and KV cache manager, with MAX's where a `DuplicatePolicy` asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from engine.cache.paged.pages import Pages
from engine.cache.paged.pool_errors import PoolCorrupted, PoolExhausted, PoolMisuse
from engine.cache.paged.prefix import HashPage, encode_token_ids, hash_page, num_equal_tokens
from engine.cache.paged.table import PageTable
from engine.errors import InputError
from engine.wire.page_events import (
    NULL_PAGE_ID,
    ROOT_HASH,
    EvictReason,
    PageCommitted,
    PageCopied,
    PageEvent,
    PrefixHit,
    PrefixMiss,
    Tier,
)
from engine.wire.prefix_match import (
    AllFullPagesHit,
    NothingFollows,
    PrefixMatch,
    TokensDiffer,
    WhyNotReused,
    num_hashable_pages,
)

_DEVICE = Tier.DEVICE  # Python 3.11 takes ten times as long to read a member from its enumeration, once per page


class DuplicatePolicy(Enum):
    """What to do when a page becomes full whose tokens another page already holds."""

    KEEP_BOTH = "keep both"  # vLLM V1: tables only ever grow; both copies are findable
    REPLACE = "replace and free"  # MAX: the table takes the older page and the newer one is freed


class PagePool(Pages):
    """Pages and the tables that refer to them. `page_hasher` is there for tests of accidental equal hashes."""

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

    # --- table by table ----------------------------------------------------------------------------------------

    def open_table(self, seq_id: int) -> PageTable:
        """An empty page table for a sequence of this pool."""
        return PageTable(seq_id, self.page_size)

    def num_pages_needed(self, table: PageTable, num_tokens: int) -> int:
        """How many pages `append` would take, the copy of a shared last page included. O(1)."""
        num_pages = -(-(table.num_tokens + num_tokens) // self.page_size) - len(table.page_ids)
        return num_pages + (num_tokens > 0 and self._is_last_page_foreign(table))

    def append(self, table: PageTable, num_tokens: int) -> PageCopied | None:
        """Make room for the next `num_tokens` tokens of a sequence.

        When the last page is partial and shared, the sequence gets its own: the copy that the caller must do before
        writing is returned. Raises PoolExhausted, having changed nothing.
        """
        if num_tokens <= 0:
            if num_tokens == 0:
                return None
            raise InputError(f"{num_tokens} tokens cannot be appended; give 0 or more.")
        page_size = self.page_size
        page_ids = table.page_ids
        stop = table.num_tokens + num_tokens
        num_slack = len(page_ids) * page_size - table.num_tokens
        if num_slack >= num_tokens and self._refs[page_ids[-1]] == 1 and self._index.entry(page_ids[-1]) is None:
            table.num_tokens = stop  # the usual decode step: its own page, with room
            return None
        self._require(self.num_pages_needed(table, num_tokens))
        copied = self._own_last_page(table) if num_slack else None
        for _ in range(-(-stop // page_size) - len(page_ids)):
            page_ids.append(self._take(table.seq_id))
        table.num_tokens = stop
        return copied

    def fork(self, table: PageTable, seq_id: int) -> PageTable:
        """A second sequence with the same tokens in the same pages. Takes no page, so that it cannot fail.

        A partial last page is shared as well; whoever appends to it first gets a copy (see `append`).
        """
        fork = PageTable(seq_id, self.page_size)
        fork.num_tokens = table.num_tokens
        fork.num_slid_pages, fork.num_dropped_pages = table.num_slid_pages, table.num_dropped_pages
        fork.page_ids = table.page_ids.copy()
        fork.page_hashes = table.page_hashes.copy()
        self._share_all(table.held_pages, seq_id)
        return fork

    def relabel(self, table: PageTable, seq_id: int) -> None:
        """The pages of a table belong to another owner from now on. Takes no page, so that it cannot fail."""
        before, table.seq_id = table.seq_id, seq_id
        if before != seq_id:
            held = table.held_pages
            self._share_all(held, seq_id)
            self._free_all(held, before)

    def truncate(self, table: PageTable, num_tokens: int) -> None:
        """Drop tokens from the end until `num_tokens` are left, and free the pages that held only them.

        Raises InputError for more tokens than there are and for a position before the window.
        """
        if not table.first_held_position <= num_tokens <= table.num_tokens:
            raise InputError(
                f"Sequence {table.seq_id} holds tokens up to {table.first_held_position} to {table.num_tokens} and "
                f"cannot be truncated to {num_tokens}."
            )
        keep = -(-num_tokens // self.page_size)
        dropped = table.page_ids[keep:]
        self._free_all([page_id for page_id in dropped if page_id], table.seq_id)
        del table.page_ids[keep:]
        del table.page_hashes[num_tokens // self.page_size :]
        table.num_tokens = num_tokens
        table.num_dropped_pages -= dropped.count(NULL_PAGE_ID)

    def drop(self, table: PageTable, numbers: Sequence[int]) -> None:
        """Give up full pages of a sequence, named by their place in its table: null pages stand there from now on.

        A page that others share stays theirs. Raises PoolMisuse, having changed nothing, for a page that is not there,
        not full or the last.
        """
        last = (table.num_tokens - 1) // self.page_size
        if len(set(numbers)) != len(numbers) or not all(n < last and table.page_ids[n] for n in numbers):
            raise PoolMisuse(f"Pages {list(numbers)} of {table} cannot be dropped.")
        self._free_all([table.page_ids[number] for number in numbers], table.seq_id)
        for number in numbers:
            table.page_ids[number] = NULL_PAGE_ID
        table.num_dropped_pages += len(numbers)

    def take_back(self, table: PageTable, numbers: Sequence[int]) -> None:
        """Fresh pages where pages were dropped; the caller writes the rows. Or PoolExhausted, nothing changed."""
        if any(table.page_ids[number] for number in numbers):
            raise PoolMisuse(f"Pages {list(numbers)} of {table} were not dropped.")
        self._require(len(numbers))
        for number in numbers:
            table.page_ids[number] = self._take(table.seq_id)
        table.num_dropped_pages -= len(numbers)

    def own(self, table: PageTable, numbers: Sequence[int]) -> list[PageCopied]:
        """Make pages of a sequence, named by their place in its table, safe to write anew: shared ones give way to
        fresh ones, which the caller fills, and no page from the first of them on is known by its tokens any more.

        Raises PoolExhausted, having changed nothing.
        """
        shared = [number for number in numbers if self._refs[table.page_ids[number]] > 1]
        self._require(len(shared))
        copies = []
        for number in numbers:
            page_id = table.page_ids[number]
            if self._refs[page_id] > 1:
                count = min(self.page_size, table.num_tokens - number * self.page_size)
                copies.append(self._give_way(table, number, count))
            elif self._index.entry(page_id) is not None:
                self._forget(page_id, EvictReason.OVERWRITE)
        del table.page_hashes[min(numbers, default=len(table.page_hashes)) :]
        return copies

    def undo_copy(self, table: PageTable, copied: PageCopied) -> None:
        """The copy of a shared page could not be made: the sequence shares it as before."""
        number = table.page_ids.index(copied.dst_page_id)
        self._share_all([copied.src_page_id], table.seq_id)
        table.page_ids[number] = copied.src_page_id
        self._free_all([copied.dst_page_id], table.seq_id)

    def slide(self, table: PageTable, first_position: int) -> None:
        """Free the pages wholly before `first_position`: the window left them, and null pages take their place.

        Raises InputError for a position after the last token. Earlier positions than before change nothing.
        """
        if first_position > table.num_tokens:
            raise InputError(
                f"The window of sequence {table.seq_id} cannot start at {first_position}: "
                f"it has {table.num_tokens} tokens."
            )
        first, stop = table.num_slid_pages, first_position // self.page_size
        if stop <= first:
            return
        released = table.page_ids[first:stop]
        self._free_all(released, table.seq_id)
        table.page_ids[first:stop] = [NULL_PAGE_ID] * len(released)
        table.num_slid_pages = stop

    def release(self, table: PageTable) -> None:
        """Free every page of a sequence, the last first, and empty its table."""
        self._free_all(table.held_pages, table.seq_id)
        table.page_ids.clear()
        table.page_hashes.clear()
        table.num_tokens = table.num_slid_pages = table.num_dropped_pages = 0

    # --- the prefix cache --------------------------------------------------------------------------------------

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

    def find_again(self, table: PageTable, token_ids: Sequence[int]) -> None:
        """Make the pages of a table findable that were, and of which that was forgotten meanwhile."""
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
        """Why the rest of a prompt is not reused. Ask before the pool changes.

        Compares the first page that missed with up to `max_candidates` pages that follow the same prefix, the
        newest first, so that its cost has a bound.
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
        """Start an empty table with the pages of a match, if the pages for `num_new_tokens` more can be had as well.

        Raises PoolExhausted, having changed nothing, when they cannot: cached pages that are hit are no longer
        there to be taken. Raises PoolMisuse for a table with tokens and for a match that is out of date.
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
        """Make the full pages of a sequence findable whose K and V have been written since the last commit.

        `token_ids` are the sequence's tokens from position 0 on. Returns the pages that are new in the index: what
        the host tier writes through. A page whose hash is taken by other tokens ends the chain; it and what
        follows stay unfindable. Raises InputError when there are fewer token ids than full pages need.
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

    # --- the single steps --------------------------------------------------------------------------------------

    def _is_last_page_foreign(self, table: PageTable) -> bool:
        """Whether the next token would be written into a page that other sequences read."""
        return table.num_tokens % self.page_size != 0 and self._refs[table.page_ids[-1]] > 1

    def _own_last_page(self, table: PageTable) -> PageCopied | None:
        """Make the partial last page safe to write: copy it when shared, forget its old tokens when findable."""
        page_id = table.page_ids[-1]
        if self._refs[page_id] == 1:
            if self._index.entry(page_id) is not None:
                self._forget(page_id, EvictReason.OVERWRITE)
            return None
        return self._give_way(table, -1, table.num_tokens % self.page_size)

    def _give_way(self, table: PageTable, number: int, num_tokens: int) -> PageCopied:
        """A fresh page in the place of a shared one, or an error and none: the copy that the caller must do."""
        page_id = table.page_ids[number]
        self._free_all([page_id], table.seq_id)
        freed = self.events.pop()
        try:
            taken = self._take(table.seq_id)
        except BaseException:
            self._share_all([page_id], table.seq_id)
            self.events.pop()
            raise
        copied = PageCopied(table.seq_id, page_id, taken, num_tokens)
        self.events += (copied, freed)
        table.page_ids[number] = taken
        return copied

    def _commit_page(self, table: PageTable, page: int, entry: PageCommitted, twin: PageCommitted | None) -> bool:
        """Whether the page came into the index by this call; `twin` is the page that holds its tokens already."""
        page_id = entry.page_id
        if page_id == NULL_PAGE_ID:
            return False  # it left the window or was dropped before it was committed: only the chain goes on
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

    # --- proof -------------------------------------------------------------------------------------------------

    def check(self, tables: Iterable[PageTable] | None = None) -> None:
        """Verify every invariant and raise PoolCorrupted with all that is wrong. O(pages), for tests and doubts.

        With `tables` (all tables of this pool) it also proves that each reference has exactly one owner: no leak,
        no double free, and no partial page that two sequences would write to unnoticed.
        """
        found = self.faults()
        if tables is not None:
            found.extend(self._owner_faults(list(tables)))
        if found:
            raise PoolCorrupted("; ".join(found))

    def _owner_faults(self, tables: list[PageTable]) -> Iterable[str]:
        owners = [0] * self.num_pages
        for table in tables:
            yield from table.faults()
            for page_id in table.held_pages:
                owners[page_id] += 1
            yield from self._hash_faults(table)
        for page_id, num_owners in enumerate(owners):
            if num_owners != self._refs[page_id]:
                yield f"page {page_id} has {self._refs[page_id]} references, but {num_owners} tables hold it"

    def _hash_faults(self, table: PageTable) -> Iterable[str]:
        for page_id, page_hash in zip(table.page_ids, table.page_hashes, strict=False):
            entry = self._index.entry(page_id)
            if entry is not None and entry.page_hash != page_hash:
                yield f"page {page_id} is findable by another hash than {table} knows it by"
