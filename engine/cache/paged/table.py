"""The page table of a sequence: its pages in logical order, and the slot of every position."""

from __future__ import annotations

from engine.errors import InputError
from engine.wire.pages import NULL_PAGE_ID


class PageTable:
    """The pages of one sequence in one pool. Only the `PagePool` changes it; everybody may read it.

    `page_ids` has one id for every started page. The first `num_slid_pages` of them are the null page: their tokens
    left the window. Of the later ones, `num_evicted_pages` full pages, never the last, are null as well: they were
    evicted. `page_hashes` are the chained hashes of the leading full pages that were committed.
    """

    __slots__ = ("num_evicted_pages", "num_slid_pages", "num_tokens", "page_hashes", "page_ids", "page_size", "seq_id")

    def __init__(self, seq_id: int, page_size: int) -> None:
        self.seq_id = seq_id
        self.page_size = page_size
        self.num_tokens = 0
        self.num_slid_pages = 0
        self.num_evicted_pages = 0
        self.page_ids: list[int] = []
        self.page_hashes: list[bytes] = []

    @classmethod
    def of_gaps(cls, seq_id: int, page_size: int, num_tokens: int, num_slid_pages: int) -> PageTable:
        """A table of `num_tokens` tokens without a single page; the pool's `restore_pages` gives it the pages that it
        holds."""
        table = cls(seq_id, page_size)
        table.num_tokens, table.num_slid_pages = num_tokens, num_slid_pages
        table.page_ids = [NULL_PAGE_ID] * -(-num_tokens // page_size)
        table.num_evicted_pages = len(table.page_ids) - num_slid_pages
        return table

    def __repr__(self) -> str:
        return f"PageTable(seq_id={self.seq_id}, num_tokens={self.num_tokens}, page_ids={self.page_ids})"

    @property
    def first_held_position(self) -> int:
        """The first position whose page has not left the window."""
        return self.num_slid_pages * self.page_size

    @property
    def num_held_tokens(self) -> int:
        """Tokens whose K and V are still there."""
        return self.num_tokens - self.first_held_position - self.num_evicted_pages * self.page_size

    @property
    def held_pages(self) -> list[int]:
        """The ids of the pages that are there, in logical order."""
        held = self.page_ids[self.num_slid_pages :]
        return [page_id for page_id in held if page_id] if self.num_evicted_pages else held

    @property
    def held_numbers(self) -> list[int]:
        """The indices in the table of the pages held."""
        return [n for n, page_id in enumerate(self.page_ids) if page_id]

    @property
    def num_slack_tokens(self) -> int:
        """Slots of the last page that hold no token yet."""
        return len(self.page_ids) * self.page_size - self.num_tokens

    def slot(self, position: int) -> int:
        """`page_id * page_size + offset` of a held position. Raises InputError for any other. O(1)."""
        is_inside = self.first_held_position <= position < self.num_tokens
        if not is_inside or not self.page_ids[position // self.page_size]:
            raise InputError(
                f"Position {position} is not in the cache of sequence {self.seq_id}, "
                f"which holds {self.first_held_position} to {self.num_tokens - 1}."
            )
        return self.page_ids[position // self.page_size] * self.page_size + position % self.page_size

    def faults(self) -> list[str]:
        """What is inconsistent in the table itself, in words; nothing when it is sound. O(pages)."""
        found = []
        if len(self.page_ids) != -(-self.num_tokens // self.page_size):
            found.append(f"{self} has {len(self.page_ids)} pages of {self.page_size} for {self.num_tokens} tokens")
        if len(self.page_hashes) > self.num_tokens // self.page_size:
            found.append(f"{self} has {len(self.page_hashes)} page hashes, more than full pages")
        slid, held = self.page_ids[: self.num_slid_pages], self.page_ids[self.num_slid_pages :]
        if any(page_id != NULL_PAGE_ID for page_id in slid) or len(slid) != self.num_slid_pages:
            found.append(f"{self} has pages before its window")
        if held.count(NULL_PAGE_ID) != self.num_evicted_pages or held[-1:] == [NULL_PAGE_ID]:
            found.append(f"{self} has the null page in its window, and {self.num_evicted_pages} pages were evicted")
        if len(set(self.held_pages)) != len(self.held_pages):
            found.append(f"{self} has a page twice")
        return found
