"""Which page belongs to which sequence: page tables over one pool, with the prefix cache below. No K and V.

Every operation costs O(1) per page that it touches; one that cannot be done raises before it changes anything. The
rules are those of vLLM V1's block pool and KV cache manager, with MAX's where a `DuplicatePolicy` asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.cache.paged.pages import PoolCorrupted, PoolMisuse
from engine.cache.paged.prefix_cache import PrefixCache
from engine.cache.paged.table import PageTable
from engine.errors import InputError
from engine.wire.page_events import NULL_PAGE_ID, EvictReason, PageCopied, PageEvent, PageFreed, PageShared


class PagePool(PrefixCache):
    """The pages of a pool and the page tables that refer to them."""

    __slots__ = ()

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
        fork.num_slid_pages, fork.num_dropped_pages = table.num_slid_pages, table.num_dropped_pages
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
        dropped = table.page_ids[keep:]
        self._free_all([page_id for page_id in dropped if page_id], table.seq_id)
        del table.page_ids[keep:]
        del table.page_hashes[num_tokens // self.page_size :]
        table.num_tokens = num_tokens
        table.num_dropped_pages -= dropped.count(NULL_PAGE_ID)

    def drop(self, table: PageTable, numbers: Sequence[int]) -> None:
        """Remove full pages from a sequence, given by their index in its table, where null pages take their place.

        A page that other sequences share stays theirs. Raises PoolMisuse, having changed nothing, for a page that is
        not there, not full or the last.
        """
        last = (table.num_tokens - 1) // self.page_size
        if len(set(numbers)) != len(numbers) or not all(n < last and table.page_ids[n] for n in numbers):
            raise PoolMisuse(f"Pages {list(numbers)} of {table} cannot be dropped.")
        self._free_all([table.page_ids[number] for number in numbers], table.seq_id)
        for number in numbers:
            table.page_ids[number] = NULL_PAGE_ID
        table.num_dropped_pages += len(numbers)

    def restore_pages(self, table: PageTable, numbers: Sequence[int]) -> None:
        """Take new pages in the place of dropped ones; the caller writes their rows. Raises PoolExhausted, having
        changed nothing."""
        if any(table.page_ids[number] for number in numbers):
            raise PoolMisuse(f"Pages {list(numbers)} of {table} were not dropped.")
        self._require(len(numbers))
        for number in numbers:
            table.page_ids[number] = self._take(table.seq_id)
        table.num_dropped_pages -= len(numbers)

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
        table.num_tokens = table.num_slid_pages = table.num_dropped_pages = 0

    # --- the single steps --------------------------------------------------------------------------------------

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
