"""The index of the prefix cache: full pages by the chained hash of their tokens.

The hash of a page covers its tokens and the hash of the page before it, so equal hashes mean equal prefixes. The tokens
are stored too and compared, so that two pages with the same hash by accident are never mistaken for each other. Device
and host tier use this index; it knows nothing of reference counts.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b

from engine.errors import InputError
from engine.wire.page_events import PageCommitted

HashPage = Callable[[bytes, bytes], bytes]

_NONE = -1  # ends a sibling chain inside the flat arrays; used in this file only


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


class PrefixIndex:
    """Findable pages by hash, by page id and by parent. Page ids are 0 .. num_ids - 1. All operations are O(1) per
    page.

    Several pages may hold the same prefix: the first one committed is found; if it is removed, the oldest of the others
    is.
    """

    __slots__ = ("_by_hash", "_copies", "_entry_of", "_first_child", "_next_sibling", "_orphans", "_prev_sibling")

    def __init__(self, num_ids: int) -> None:
        self._entry_of: list[PageCommitted | None] = [None] * num_ids
        self._by_hash: dict[bytes, PageCommitted] = {}
        self._copies: dict[bytes, dict[int, PageCommitted]] = {}  # duplicates only, oldest first
        # The children of one parent form a chain, newest first. It starts at the page that is found for the parent's
        # hash, or among the orphans when no page is (the root never has one). A chain hangs on a page and not on its
        # hash because a second dictionary of all hashes would cost an eviction its worst cache misses.
        self._first_child = array("i", [_NONE]) * num_ids
        self._next_sibling = array("i", [_NONE]) * num_ids
        self._prev_sibling = array("i", [_NONE]) * num_ids
        self._orphans: dict[bytes, int] = {}

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

    def children(self, parent_hash: bytes) -> Iterator[PageCommitted]:
        """Every page that follows this prefix, the newest first."""
        page_id = self._first_child_after(parent_hash)
        while page_id != _NONE:
            entry = self._entry_of[page_id]
            assert entry is not None
            yield entry
            page_id = self._next_sibling[page_id]

    def add(self, entry: PageCommitted) -> None:
        """Make a page findable. The caller has ruled out a collision and an entry under the same page id."""
        page_id, page_hash, parent_hash = entry.page_id, entry.page_hash, entry.parent_hash
        self._entry_of[page_id] = entry
        first = self._by_hash.setdefault(page_hash, entry)
        if first is not entry:
            self._copies.setdefault(page_hash, {})[page_id] = entry
        elif page_hash in self._orphans:
            self._first_child[page_id] = self._orphans.pop(page_hash)
        parent = self._by_hash.get(parent_hash)
        if parent is None:
            newest = self._orphans.get(parent_hash, _NONE)
            self._orphans[parent_hash] = page_id
        else:
            newest = self._first_child[parent.page_id]
            self._first_child[parent.page_id] = page_id
        if newest != _NONE:
            self._next_sibling[page_id] = newest
            self._prev_sibling[newest] = page_id

    def remove(self, page_id: int) -> PageCommitted:
        """Remove a findable page and return its entry; the oldest duplicate, if any, is found instead of it."""
        entry = self._entry_of[page_id]
        assert entry is not None
        self._unlink_sibling(page_id, entry.parent_hash)
        self._entry_of[page_id] = None
        if self._copies and entry.page_hash in self._copies:
            self._remove_copy(entry)
            return entry
        del self._by_hash[entry.page_hash]
        if (child := self._first_child[page_id]) != _NONE:
            self._first_child[page_id] = _NONE
            self._orphans[entry.page_hash] = child
        return entry

    def num_pages(self) -> int:
        """How many pages can be found, duplicates included. O(duplicated prefixes)."""
        return len(self._by_hash) + sum(len(copies) for copies in self._copies.values())

    def _remove_copy(self, entry: PageCommitted) -> None:
        copies = self._copies[entry.page_hash]
        if entry.page_id in copies:
            del copies[entry.page_id]
        else:
            heir = copies.pop(next(iter(copies)))
            self._by_hash[entry.page_hash] = heir
            self._first_child[heir.page_id] = self._first_child[entry.page_id]
            self._first_child[entry.page_id] = _NONE
        if not copies:
            del self._copies[entry.page_hash]

    def _first_child_after(self, parent_hash: bytes) -> int:
        parent = self._by_hash.get(parent_hash)
        return self._orphans.get(parent_hash, _NONE) if parent is None else self._first_child[parent.page_id]

    def _start_chain(self, parent_hash: bytes, child: int) -> None:
        """Set the first child of a prefix to `child`, or to none."""
        parent = self._by_hash.get(parent_hash)
        if parent is not None:
            self._first_child[parent.page_id] = child
        elif child != _NONE:
            self._orphans[parent_hash] = child
        else:
            del self._orphans[parent_hash]

    def _unlink_sibling(self, page_id: int, parent_hash: bytes) -> None:
        newer, older = self._prev_sibling[page_id], self._next_sibling[page_id]
        if newer == _NONE:
            self._start_chain(parent_hash, older)
        else:
            self._next_sibling[newer] = older
            self._prev_sibling[page_id] = _NONE
        if older != _NONE:
            self._prev_sibling[older] = newer
            self._next_sibling[page_id] = _NONE

    def faults(self) -> list[str]:
        """Inconsistencies, in words; empty when hashes, ids and chains agree. O(ids)."""
        entries = {page_id: entry for page_id, entry in enumerate(self._entry_of) if entry is not None}
        return [*self._hash_faults(entries), *self._chain_faults(entries), *self._stray_faults(entries)]

    def _hash_faults(self, entries: dict[int, PageCommitted]) -> Iterator[str]:
        for page_id, entry in entries.items():
            copies = self._copies.get(entry.page_hash, {})
            if entry.page_id != page_id:
                yield f"the entry of page {page_id} names page {entry.page_id}"
            if entry is not self._by_hash.get(entry.page_hash) and entry is not copies.get(page_id):
                yield f"page {page_id} has a hash that does not lead to it"
        if self.num_pages() != len(entries):
            yield f"{self.num_pages()} pages are findable by hash, but {len(entries)} have an entry"
        for page_hash, copies in self._copies.items():
            if not copies or page_hash not in self._by_hash or self._by_hash[page_hash].page_id in copies:
                yield f"the duplicates of hash {page_hash.hex()} are not behind a first page"

    def _chain_faults(self, entries: dict[int, PageCommitted]) -> Iterator[str]:
        """Every entry must be met exactly once when all chains are walked from their starts."""
        num_met = 0
        for parent_hash in {entry.parent_hash for entry in entries.values()}:
            newer, page_id = _NONE, self._first_child_after(parent_hash)
            while page_id != _NONE and num_met <= len(entries):
                entry = entries.get(page_id)
                if entry is None or entry.parent_hash != parent_hash or self._prev_sibling[page_id] != newer:
                    yield f"page {page_id} stands wrongly among the pages after {parent_hash.hex()}"
                    return
                num_met += 1
                newer, page_id = page_id, self._next_sibling[page_id]
        if num_met != len(entries):
            yield f"{num_met} pages follow some prefix, but {len(entries)} have an entry"

    def _stray_faults(self, entries: dict[int, PageCommitted]) -> Iterator[str]:
        """Links that should have been removed."""
        parents = {entry.parent_hash for entry in entries.values()}
        for parent_hash in self._orphans:
            if parent_hash in self._by_hash or parent_hash not in parents:
                yield f"the orphans of {parent_hash.hex()} have a parent, or do not exist"
        for page_id in range(len(self._entry_of)):
            links = (self._prev_sibling[page_id], self._next_sibling[page_id], self._first_child[page_id])
            if page_id not in entries and links != (_NONE, _NONE, _NONE):
                yield f"page {page_id} has no entry, but still has relatives"
