"""The queue of unreferenced pages, in the order in which they are reused: a doubly linked list inside two flat arrays.

The head is taken next. Free and cached pages are in the same list, so that taking from the head evicts the least
recently used cached page. Every operation is O(1), removal from the middle included.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence


class FreeList:
    """A queue of page ids `first_id` .. `stop_id - 1`, at the start all of them in ascending order.

    Inside, id `stop_id` is the sentinel that closes the ring, and an id that is not in the list links to itself. Arrays
    of C ints, not objects: a million pages are 8 MB and one cache line each.
    """

    __slots__ = ("_length", "_next", "_prev", "_sentinel")

    def __init__(self, first_id: int, stop_id: int) -> None:
        self._sentinel = stop_id
        self._length = stop_id - first_id
        self._next = array("i", range(stop_id + 1))
        self._prev = array("i", range(stop_id + 1))
        self._next[first_id:stop_id] = array("i", range(first_id + 1, stop_id + 1))
        self._prev[first_id + 1 : stop_id + 1] = array("i", range(first_id, stop_id))
        self._next[stop_id] = first_id
        self._prev[first_id] = stop_id

    def __len__(self) -> int:
        return self._length

    def __contains__(self, page_id: int) -> bool:
        return self._next[page_id] != page_id

    def __iter__(self) -> Iterator[int]:
        """Ids from the next to be taken to the last; the list must not change meanwhile. O(length)."""
        page_id = self._next[self._sentinel]
        while page_id != self._sentinel:
            yield page_id
            page_id = self._next[page_id]

    def head(self) -> int:
        """The id that is taken next. Raises IndexError when the list is empty."""
        page_id = self._next[self._sentinel]
        if page_id == self._sentinel:
            raise IndexError("no page is free")
        return page_id

    def pop(self) -> int:
        """Take the head. Raises IndexError when the list is empty."""
        sentinel = self._sentinel
        links = self._next
        page_id = links[sentinel]
        if page_id == sentinel:
            raise IndexError("no page is free")
        after = links[page_id]
        links[sentinel] = after
        self._prev[after] = sentinel
        links[page_id] = page_id
        self._length -= 1
        return page_id

    def push(self, page_ids: Sequence[int]) -> None:
        """Append ids that are not in the list to its tail, in the order given. Cannot fail."""
        sentinel = self._sentinel
        forward, backward = self._next, self._prev
        last = backward[sentinel]
        for page_id in page_ids:
            forward[last] = page_id
            backward[page_id] = last
            last = page_id
        forward[last] = sentinel
        backward[sentinel] = last
        self._length += len(page_ids)

    def undo_pop(self, page_id: int) -> None:
        """Make the id that was popped last the head again. The list must not have changed since."""
        sentinel, head = self._sentinel, self._next[self._sentinel]
        self._next[sentinel] = self._prev[head] = page_id
        self._next[page_id], self._prev[page_id] = head, sentinel
        self._length += 1

    def remove(self, page_ids: Sequence[int]) -> None:
        """Take ids out from wherever they are in the list. Cannot fail."""
        forward, backward = self._next, self._prev
        for page_id in page_ids:
            before, after = backward[page_id], forward[page_id]
            forward[before] = after
            backward[after] = before
            forward[page_id] = page_id
        self._length -= len(page_ids)

    def faults(self) -> list[str]:
        """Faults in the links, in words; empty when they are sound. O(ids), and ends whatever the damage."""
        seen = 0
        before, page_id = self._sentinel, self._next[self._sentinel]
        while page_id != self._sentinel and seen <= self._length:
            if self._prev[page_id] != before:
                return [f"page {page_id} follows {before} in the free list, but points back to {self._prev[page_id]}"]
            seen += 1
            before, page_id = page_id, self._next[page_id]
        if seen != self._length or self._prev[self._sentinel] != before:
            return [f"the free list counts {self._length} pages, but {seen} were met before its end"]
        num_linked = sum(1 for linked in range(self._sentinel) if linked in self)
        return [] if num_linked == seen else [f"{num_linked} pages are linked, but {seen} are in the free list"]
