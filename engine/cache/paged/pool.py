"""The pages of a pool: which page belongs to which sequence, which pages a prompt can find by its tokens, and the order
in which pages are reused. No K and V.

A page is *free* (no references, not findable), *used* (referenced by one sequence), *shared* (by several) or *cached*
(no references, but findable by its tokens). Every operation costs O(1) per page that it touches, whatever the size of
the pool, and appends what it did to `events`; one that cannot be done raises before it changes anything. The rules are
those of vLLM V1's block pool and KV cache manager, with MAX's where a pool `replaces_duplicates`.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from engine.cache.paged.prefix import (
    HashPage,
    PrefixIndex,
    PrefixMatch,
    encode_token_ids,
    hash_page,
    most_equal,
    num_hashable_pages,
)
from engine.cache.paged.table import PageTable
from engine.errors import InputError
from engine.wire.pages import (
    NULL_PAGE_ID,
    ROOT_HASH,
    EvictReason,
    PageAllocated,
    PageCommitted,
    PageCopied,
    PageEvent,
    PageEvicted,
    PageFreed,
    PageShared,
    PrefixEnd,
    PrefixHit,
    PrefixMiss,
    Tier,
)


class PoolExhausted(RuntimeError):
    """Too few pages are free or cached. Nothing was changed."""

    def __init__(self, num_needed_pages: int, num_available_pages: int) -> None:
        super().__init__(f"{num_needed_pages} pages are needed, but only {num_available_pages} can be taken")
        self.num_needed_pages = num_needed_pages
        self.num_available_pages = num_available_pages


class PoolMisuse(RuntimeError):
    """The caller broke a rule of the pool: freed a free page, shared a page that nobody can find, mixed up tables."""


class PoolCorrupted(RuntimeError):
    """`check()` found the bookkeeping at odds with itself: a defect of the program."""


MAX_NUM_PAGES = 2**31 - 2  # page ids live in arrays of C ints

# constants, because Python 3.11 takes ten times as long to read an enumeration's member
_ROOM, _DEVICE = EvictReason.ROOM, Tier.DEVICE


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """Pages by state, without the null page."""

    num_free: int
    num_cached: int
    num_used: int
    num_shared: int


class PagePool:
    """The `num_pages` pages of `page_size` tokens of a pool, of which page 0 is the null page, and the page tables that
    refer to them. `page_hasher` can be replaced to test accidental equal hashes.

    Where a page becomes full whose tokens another page already holds, both are kept and findable, as in vLLM V1; with
    `replaces_duplicates` the table takes the older page and the newer one is freed, as in MAX.

    `events` is appended to and never read: whoever owns the list drains it.
    """

    __slots__ = (
        "_free",
        "_hash_page",
        "_index",
        "_num_cached",
        "_num_shared",
        "_refs",
        "events",
        "num_pages",
        "num_share_changes",
        "page_size",
        "replaces_duplicates",
    )

    def __init__(
        self,
        num_pages: int,
        page_size: int = 16,
        *,
        replaces_duplicates: bool = False,
        page_hasher: HashPage = hash_page,
    ) -> None:
        """Raises InputError for fewer than 2 pages."""
        if not 2 <= num_pages <= MAX_NUM_PAGES:
            raise InputError(
                f"A pool of {num_pages} pages is impossible: give 2 to {MAX_NUM_PAGES}, one of which is the null page."
            )
        self.num_pages = num_pages
        self.page_size = page_size
        self.replaces_duplicates = replaces_duplicates
        self._hash_page = page_hasher
        self.events: list[PageEvent] = []
        # unreferenced pages in the order in which they are reused, free and cached ones together: taking the first
        # evicts the least recently used cached page
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(NULL_PAGE_ID + 1, num_pages))
        self._refs = array("i", [0]) * num_pages
        self._index = PrefixIndex(num_pages)
        self._num_cached = 0
        self._num_shared = 0
        self.num_share_changes = 0  # how often a reference was added to or removed from a page with another reference

    # --- looking -----------------------------------------------------------------------------------------------

    @property
    def num_available_pages(self) -> int:
        """Pages that can be taken now: free and cached ones."""
        return len(self._free)

    def are_next_free(self, count: int) -> bool:
        """Whether the next `count` pages to be taken are all free, so that taking them evicts no cached page."""
        upcoming = list(islice(self._free, count))
        return len(upcoming) == count and all(self._index.entry(page_id) is None for page_id in upcoming)

    def counts(self) -> PoolCounts:
        """Pages by state. O(1)."""
        num_referenced = self.num_pages - 1 - len(self._free)
        return PoolCounts(
            num_free=len(self._free) - self._num_cached,
            num_cached=self._num_cached,
            num_used=num_referenced - self._num_shared,
            num_shared=self._num_shared,
        )

    def ref_count(self, page_id: int) -> int:
        """How many tables refer to the page; 0 for the null page."""
        return self._refs[page_id]

    def entry(self, page_id: int) -> PageCommitted | None:
        """What a findable page holds (hash, parent, tokens); None for a page that cannot be found."""
        return self._index.entry(page_id)

    def findable(self) -> Iterator[PageCommitted]:
        """Every page that a prompt can find, copies too."""
        return (entry for page_id in range(self.num_pages) if (entry := self._index.entry(page_id)) is not None)

    # --- pages by their tokens ---------------------------------------------------------------------------------

    def match_prefix(self, token_ids: Sequence[int]) -> PrefixMatch:
        """The longest run of findable pages that starts this prompt, never with its last token. Changes nothing."""
        token_bytes, pages = encode_token_ids(token_ids), range(num_hashable_pages(len(token_ids), self.page_size))
        found = [*self._index.follow(ROOT_HASH, token_bytes, pages, 4 * self.page_size, self._hash_page)]
        page_ids, page_hashes = tuple(each.page_id for each in found), tuple(each.page_hash for each in found)
        return PrefixMatch(self.page_size, page_ids, page_hashes, token_bytes)

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

    def explain(self, match: PrefixMatch, max_candidates: int = 64) -> PrefixEnd:
        """Why no more of a prompt was reused. To be called before the pool changes.

        Compares the first page that missed with up to `max_candidates` pages that follow the same prefix, the newest
        first, so that its cost has a bound.
        """
        num_hits, size, found = len(match.page_ids), match.page_size, match.num_hit_tokens
        wanted, children = match.page_tokens(num_hits), self._index.children(match.last_hash)
        if num_hits == match.num_hashable_pages:
            return PrefixEnd(match.num_tokens, found, size, is_all=True)
        if not (compared := list(islice(children, max_candidates))):
            return PrefixEnd(match.num_tokens, found, size)
        number, num_equal = most_equal([each.token_bytes for each in compared], wanted)
        stored, is_exact = compared[number].token_ids[num_equal], next(children, None) is None
        return PrefixEnd(match.num_tokens, found, size, num_equal, stored, is_exact=is_exact)

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
        if twin is not None and self.replaces_duplicates:
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

    def evict(self, page_ids: Iterable[int]) -> int:
        """Remove these pages from the prefix cache; used pages stay with their sequences. Returns how many were
        findable.

        Whoever edits K or V of a committed page evicts it and every later page of its sequence.
        """
        findable = [page_id for page_id in page_ids if self._index.entry(page_id) is not None]
        for page_id in findable:
            self._forget(page_id, EvictReason.REQUEST)
        return len(findable)

    # --- table by table ----------------------------------------------------------------------------------------

    def open_table(self, seq_id: int) -> PageTable:
        """An empty page table for a sequence of this pool."""
        return PageTable(seq_id, self.page_size)

    def num_pages_needed(self, table: PageTable, num_tokens: int) -> int:
        """How many pages `append` would take, the copy of a shared last page included. O(1)."""
        num_pages = -(-(table.num_tokens + num_tokens) // self.page_size) - len(table.page_ids)
        return num_pages + (num_tokens > 0 and self._is_last_page_foreign(table))

    def has_room(self, table: PageTable, num_tokens: int) -> bool:
        """Whether the next tokens fit on the last page, and can be written there at once: no other table refers to it,
        and it is not findable."""
        page_ids = table.page_ids
        if len(page_ids) * self.page_size - table.num_tokens < num_tokens:
            return False
        return self._refs[page_ids[-1]] == 1 and self._index.entry(page_ids[-1]) is None

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
        if self.has_room(table, num_tokens):  # the usual decode step
            table.num_tokens = stop
            return None
        num_slack = len(page_ids) * page_size - table.num_tokens
        self._require(self.num_pages_needed(table, num_tokens))
        copied = self._unshare_last_page(table) if num_slack else None
        for _ in range(-(-stop // page_size) - len(page_ids)):
            page_ids.append(self._take(table.seq_id))
        table.num_tokens = stop
        return copied

    def undo_append(self, table: PageTable) -> None:
        """Undo the `append` of one token that copied and evicted nothing, right after it. A page that it took becomes
        the next to be taken again, and its event is removed. To undo several appends, undo the latest first."""
        if table.num_tokens % self.page_size == 1 % self.page_size:
            self._undo_take(table.page_ids[-1])
            table.page_ids.pop()
        table.num_tokens -= 1

    def fork(self, table: PageTable, seq_id: int) -> PageTable:
        """A second sequence with the same tokens in the same pages. Takes no page, so that it cannot fail.

        A partial last page is shared as well; whoever appends to it first gets a copy (see `append`).
        """
        fork = PageTable(seq_id, self.page_size)
        fork.num_tokens = table.num_tokens
        fork.num_slid_pages, fork.num_evicted_pages = table.num_slid_pages, table.num_evicted_pages
        fork.page_ids = table.page_ids.copy()
        fork.page_hashes = table.page_hashes.copy()
        self._share_all(table.held_pages, seq_id)
        return fork

    def relabel(self, table: PageTable, seq_id: int) -> None:
        """Give the pages of a table to another owner. The events say for each page that it was shared with `seq_id`,
        and then freed by the former owner."""
        if table.seq_id == seq_id:
            return
        held, refs = table.held_pages, self._refs
        shared: list[PageEvent] = [PageShared(seq_id, page_id, refs[page_id] + 1) for page_id in held]
        freed: list[PageEvent] = [
            PageFreed(table.seq_id, page_id, refs[page_id], self.entry(page_id) is not None) for page_id in held
        ]
        table.seq_id = seq_id
        self.num_share_changes += len(held)
        self.events += shared + freed

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
        cut = table.page_ids[keep:]
        self._free_all([page_id for page_id in cut if page_id], table.seq_id)
        del table.page_ids[keep:]
        del table.page_hashes[num_tokens // self.page_size :]
        table.num_tokens = num_tokens
        table.num_evicted_pages -= cut.count(NULL_PAGE_ID)

    def evict_from(self, table: PageTable, numbers: Sequence[int]) -> None:
        """Remove full pages from a sequence, given by their index in its table, where null pages take their place.

        A page that other sequences share stays theirs. Raises PoolMisuse, having changed nothing, for a page that is
        not there, not full or the last.
        """
        last = (table.num_tokens - 1) // self.page_size
        if len(set(numbers)) != len(numbers) or not all(n < last and table.page_ids[n] for n in numbers):
            raise PoolMisuse(f"Pages {list(numbers)} of {table} cannot be evicted.")
        self._free_all([table.page_ids[number] for number in numbers], table.seq_id)
        for number in numbers:
            table.page_ids[number] = NULL_PAGE_ID
        table.num_evicted_pages += len(numbers)

    def restore_pages(self, table: PageTable, numbers: Sequence[int]) -> None:
        """Take new pages in the place of evicted ones; the caller writes their rows. Raises PoolExhausted, having
        changed nothing."""
        if any(table.page_ids[number] for number in numbers):
            raise PoolMisuse(f"Pages {list(numbers)} of {table} were not evicted.")
        self._require(len(numbers))
        for number in numbers:
            table.page_ids[number] = self._take(table.seq_id)
        table.num_evicted_pages -= len(numbers)

    def make_writable(self, table: PageTable, numbers: Sequence[int]) -> list[PageCopied]:
        """Make pages of a sequence, given by their index in its table, safe to overwrite. Shared ones are replaced by
        new pages, which the caller fills as the returned copies say; and from the first of these pages on, the table's
        pages are no longer known by their tokens.

        Raises PoolExhausted, having changed nothing.
        """
        shared = [number for number in numbers if self._refs[table.page_ids[number]] > 1]
        self._require(len(shared))
        copies = []
        for number in numbers:
            page_id = table.page_ids[number]
            if self._refs[page_id] > 1:
                count = min(self.page_size, table.num_tokens - number * self.page_size)
                copies.append(self._replace_shared(table, number, count))
            elif self._index.entry(page_id) is not None:
                self._forget(page_id, EvictReason.OVERWRITE)
        del table.page_hashes[min(numbers, default=len(table.page_hashes)) :]
        return copies

    def undo_copy(self, table: PageTable, copied: PageCopied) -> None:
        """Undo a copy-on-write whose copy failed: the sequence refers to the shared page again."""
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
        table.num_tokens = table.num_slid_pages = table.num_evicted_pages = 0

    # --- the single steps --------------------------------------------------------------------------------------

    def _require(self, num_pages: int) -> None:
        if num_pages > len(self._free):
            raise PoolExhausted(num_pages, len(self._free))

    def _take(self, seq_id: int) -> int:
        page_id = next(iter(self._free))
        if self._index.entry(page_id) is not None:
            self._forget(page_id, _ROOM)
        taken = PageAllocated(seq_id, page_id)
        del self._free[page_id]
        self._refs[page_id] = 1
        self.events.append(taken)
        return page_id

    def _undo_take(self, page_id: int) -> None:
        """Undo the latest `_take`. Raises PoolMisuse, having changed nothing, if another event has happened since, or
        if taking the page evicted it from the prefix cache."""
        last, before = self.events[-1:], self.events[-2:-1]
        is_last = len(last) == 1 and isinstance(last[0], PageAllocated) and last[0].page_id == page_id
        was_findable = bool(before) and isinstance(before[0], PageEvicted) and before[0].committed.page_id == page_id
        if not is_last or was_findable or self._refs[page_id] != 1:
            raise PoolMisuse(f"Page {page_id} cannot be put back where it was taken from.")
        self.events.pop()
        self._refs[page_id] = 0
        self._free[page_id] = None
        self._free.move_to_end(page_id, last=False)

    def _share_all(self, page_ids: Sequence[int], seq_id: int) -> None:
        """Add a reference to each of these pages, all of them different; an error changes nothing."""
        refs, revived, num_shared, events = self._refs, [], 0, []
        for page_id in page_ids:
            ref_count = refs[page_id] + 1
            if ref_count == 1:
                revived.append(page_id)
            num_shared += ref_count == 2
            events.append(PageShared(seq_id, page_id, ref_count))
        for page_id in revived:
            del self._free[page_id]
        for event in events:
            refs[event.page_id] = event.ref_count
        self._num_cached -= len(revived)
        self._num_shared += num_shared
        self.num_share_changes += len(events) - len(revived)
        self.events += events

    def _free_all(self, page_ids: Sequence[int], seq_id: int) -> None:
        """Drop a reference to each of these pages, all of them different, the last first; an error changes nothing."""
        refs, entry_of, unused, num_cached, num_unshared, events = self._refs, self._index.entry, [], 0, 0, []
        for page_id in reversed(page_ids):
            ref_count, is_findable = refs[page_id] - 1, entry_of(page_id) is not None
            if ref_count == 0:
                unused.append(page_id)
                num_cached += is_findable
            num_unshared += ref_count == 1
            events.append(PageFreed(seq_id, page_id, ref_count, is_findable))
        self._free.update(dict.fromkeys(unused))
        for event in events:
            refs[event.page_id] = event.ref_count
        self._num_cached += num_cached
        self._num_shared -= num_unshared
        self.num_share_changes += len(events) - len(unused)
        self.events += events

    def _forget(self, page_id: int, reason: EvictReason) -> None:
        entry = self._index.remove(page_id)
        if not self._refs[page_id]:
            self._num_cached -= 1
        self.events.append(PageEvicted(entry, reason))

    def _is_last_page_foreign(self, table: PageTable) -> bool:
        """Whether the next token would be written into a page that other sequences read."""
        return table.num_tokens % self.page_size != 0 and self._refs[table.page_ids[-1]] > 1

    def _unshare_last_page(self, table: PageTable) -> PageCopied | None:
        """Make the partial last page safe to write: copy it if it is shared, make it unfindable if it is findable."""
        page_id = table.page_ids[-1]
        if self._refs[page_id] == 1:
            if self._index.entry(page_id) is not None:
                self._forget(page_id, EvictReason.OVERWRITE)
            return None
        return self._replace_shared(table, -1, table.num_tokens % self.page_size)

    def _replace_shared(self, table: PageTable, number: int, num_tokens: int) -> PageCopied:
        """Replace a shared page in a table by a new one, and return the copy that the caller must do; an error changes
        nothing."""
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

    # --- proof -------------------------------------------------------------------------------------------------

    def check(self, tables: Iterable[PageTable] | None = None) -> None:
        """Verify every invariant and raise PoolCorrupted with all that is wrong. O(pages).

        With `tables` (all tables of this pool) it also proves that each reference has exactly one owner: no leak,
        no double free, and no partial page that two sequences would write to unnoticed.
        """
        found = [*self._index.faults(), *self._count_faults()]
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

    def _count_faults(self) -> Iterable[str]:
        num_cached = num_shared = 0
        for page_id in range(NULL_PAGE_ID + 1, self.num_pages):
            ref_count = self._refs[page_id]
            if (ref_count == 0) != (page_id in self._free) or ref_count < 0:
                yield f"page {page_id} has {ref_count} references, and in the free list: {page_id in self._free}"
            num_shared += ref_count > 1
            num_cached += ref_count == 0 and self._index.entry(page_id) is not None
        if (num_cached, num_shared) != (self._num_cached, self._num_shared):
            yield f"{num_cached} cached and {num_shared} shared pages are counted as {self.counts()}"
        if self._refs[NULL_PAGE_ID] or NULL_PAGE_ID in self._free or self._index.entry(NULL_PAGE_ID) is not None:
            yield "the null page is referenced, free or findable"
