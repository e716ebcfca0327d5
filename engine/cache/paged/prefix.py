"""The index of the prefix cache: full pages by the chained hash of their tokens.

The hash of a page covers its tokens and the hash of the page before it, so equal hashes mean equal prefixes. The tokens
are stored too and compared, so that two pages with the same hash by accident are never mistaken for each other. Device
and host tier use this index; it knows nothing of reference counts.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from engine.errors import InputError
from engine.wire.pages import ROOT_HASH, PageCommitted

HashPage = Callable[[bytes, bytes], bytes]


def hash_page(parent_hash: bytes, token_bytes: bytes) -> bytes:
    """The 16-byte BLAKE2b digest of the parent page's hash and this page's tokens: the same in every process and
    machine.

    vLLM and MAX chain in the same way with other digests (SHA-256, xxHash, aHash); transformers' continuous batching
    uses BLAKE2b too, with 8 bytes.
    """
    return blake2b(parent_hash + token_bytes, digest_size=16).digest()


def encode_token_ids(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian int32. Raises InputError for one outside of int32."""
    try:
        encoded = array("i", token_ids)
    except OverflowError:
        raise InputError("A token id lies outside of 32 bits; token ids are indices into a vocabulary.") from None
    if sys.byteorder == "big":
        encoded.byteswap()
    return encoded.tobytes()


def num_equal_tokens(left: bytes, right: bytes) -> int:
    """How many leading tokens two encoded sequences have in common."""
    num_bytes = min(len(left), len(right))
    difference = int.from_bytes(left[:num_bytes], "big") ^ int.from_bytes(right[:num_bytes], "big")
    first_byte = num_bytes - (difference.bit_length() + 7) // 8
    return first_byte // 4


def most_equal(candidates: Sequence[bytes], wanted: bytes) -> tuple[int, int]:
    """Which of the encoded pages has the most leading tokens in common with another one, the first of several; and how
    many. There must be a candidate."""
    equal = [num_equal_tokens(each, wanted) for each in candidates]
    return equal.index(max(equal)), max(equal)


def num_hashable_pages(num_tokens: int, page_size: int) -> int:
    """How many pages of a prompt can be served from the prefix cache: full ones that do not hold its last token.

    The last token is always computed, because its logits are needed (vLLM `get_computed_blocks`, MAX's block manager):
    128 tokens at page size 128 give 0, 129 give 1.
    """
    return max(0, num_tokens - 1) // page_size


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The cached pages that a prompt can start from, at the time of the lookup.

    `page_hashes` are the hashes of `page_ids`. `token_bytes` is the whole prompt as little-endian int32.
    """

    page_size: int
    page_ids: tuple[int, ...]
    page_hashes: tuple[bytes, ...]
    token_bytes: bytes = field(repr=False)

    @property
    def num_tokens(self) -> int:
        """Tokens in the prompt."""
        return len(self.token_bytes) // 4

    @property
    def num_hit_tokens(self) -> int:
        """Leading tokens whose K and V need not be computed again."""
        return len(self.page_ids) * self.page_size

    @property
    def num_hashable_pages(self) -> int:
        """The most pages that a hit could have: full ones without the last token."""
        return num_hashable_pages(self.num_tokens, self.page_size)

    def cut(self, num_pages: int) -> PrefixMatch:
        """The same match with at most `num_pages` pages."""
        return replace(self, page_ids=self.page_ids[:num_pages], page_hashes=self.page_hashes[:num_pages])

    @property
    def last_hash(self) -> bytes:
        """The hash of the last matched page, or the common root of all chains."""
        return self.page_hashes[-1] if self.page_hashes else ROOT_HASH

    def page_tokens(self, page: int) -> bytes:
        """The encoded tokens of the prompt's logical page `page`."""
        width = 4 * self.page_size
        return self.token_bytes[page * width : (page + 1) * width]


class PrefixIndex:
    """Findable pages by hash, by page id and by parent. Page ids are 0 .. num_ids - 1. All operations are O(1) per
    page.

    Several pages may hold the same prefix: the first one committed is found; if it is removed, the oldest of the others
    is.
    """

    __slots__ = ("_by_hash", "_children", "_copies", "_entry_of")

    def __init__(self, num_ids: int) -> None:
        self._entry_of: list[PageCommitted | None] = [None] * num_ids
        self._by_hash: dict[bytes, PageCommitted] = {}
        self._copies: dict[bytes, dict[int, PageCommitted]] = {}  # duplicates only, oldest first
        self._children: dict[bytes, dict[int, PageCommitted]] = {}  # by the hash of the parent, oldest first

    def entry(self, page_id: int) -> PageCommitted | None:
        """The hash and tokens of a findable page; None for a page that cannot be found."""
        return self._entry_of[page_id]

    def first(self, page_hash: bytes) -> PageCommitted | None:
        """The page that has this hash, whatever its tokens."""
        return self._by_hash.get(page_hash)

    def find(self, page_hash: bytes, parent_hash: bytes, token_bytes: bytes) -> PageCommitted | None:
        """The page that holds these tokens after this prefix; None on a miss, and if the hash is equal by accident
        only."""
        found = self._by_hash.get(page_hash)
        if found is None or found.token_bytes != token_bytes or found.parent_hash != parent_hash:
            return None
        return found

    def follow(
        self, parent_hash: bytes, token_bytes: bytes, pages: range, width: int, page_hasher: HashPage = hash_page
    ) -> Iterator[PageCommitted]:
        """The pages that continue a prefix, in order until the first miss: of a prompt's encoded tokens its logical
        `pages`, each of `width` bytes."""
        for page in pages:
            page_tokens = token_bytes[page * width : (page + 1) * width]
            page_hash = page_hasher(parent_hash, page_tokens)
            found = self.find(page_hash, parent_hash, page_tokens)
            if found is None:
                return
            yield found
            parent_hash = page_hash

    def children(self, parent_hash: bytes) -> Iterator[PageCommitted]:
        """Every page that follows this prefix, the newest first."""
        return reversed(self._children.get(parent_hash, {}).values())

    def add(self, entry: PageCommitted) -> None:
        """Make a page findable. The caller has ruled out a collision and an entry under the same page id."""
        page_id, page_hash = entry.page_id, entry.page_hash
        self._entry_of[page_id] = entry
        if self._by_hash.setdefault(page_hash, entry) is not entry:
            self._copies.setdefault(page_hash, {})[page_id] = entry
        self._children.setdefault(entry.parent_hash, {})[page_id] = entry

    def remove(self, page_id: int) -> PageCommitted:
        """Remove a findable page and return its entry; the oldest duplicate, if any, is found instead of it."""
        entry = self._entry_of[page_id]
        assert entry is not None
        page_hash, siblings = entry.page_hash, self._children[entry.parent_hash]
        self._entry_of[page_id] = None
        del siblings[page_id]
        if not siblings:
            del self._children[entry.parent_hash]
        copies = self._copies.get(page_hash)
        if copies is None:
            del self._by_hash[page_hash]
            return entry
        if copies.pop(page_id, None) is None:  # it was the first
            self._by_hash[page_hash] = copies.pop(next(iter(copies)))
        if not copies:
            del self._copies[page_hash]
        return entry

    def num_pages(self) -> int:
        """How many pages can be found, duplicates included. O(duplicated prefixes)."""
        return len(self._by_hash) + sum(len(copies) for copies in self._copies.values())

    def faults(self) -> list[str]:
        """Inconsistencies, in words; empty when hashes, ids and parents agree. O(ids)."""
        entries = {page_id: entry for page_id, entry in enumerate(self._entry_of) if entry is not None}
        return list(self._faults(entries))

    def _faults(self, entries: dict[int, PageCommitted]) -> Iterator[str]:
        for page_id, entry in entries.items():
            copies = self._copies.get(entry.page_hash, {})
            if entry.page_id != page_id:
                yield f"the entry of page {page_id} names page {entry.page_id}"
            if entry is not self._by_hash.get(entry.page_hash) and entry is not copies.get(page_id):
                yield f"page {page_id} has a hash that does not lead to it"
            if self._children.get(entry.parent_hash, {}).get(page_id) is not entry:
                yield f"page {page_id} is not among the pages after {entry.parent_hash.hex()}"
        num_children = sum(map(len, self._children.values()))
        for count, how in ((self.num_pages(), "are findable by hash"), (num_children, "follow some prefix")):
            if count != len(entries):
                yield f"{count} pages {how}, but {len(entries)} have an entry"
        for page_hash, copies in self._copies.items():
            if not copies or page_hash not in self._by_hash or self._by_hash[page_hash].page_id in copies:
                yield f"the duplicates of hash {page_hash.hex()} are not behind a first page"
