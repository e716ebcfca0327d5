"""The journal that makes evictions reversible: evicted rows and the eviction rule's state after each step, within a
memory limit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from engine.cache.compressed.layer import Dropped
    from engine.cache.paged.retention import DroppedPages


# rows that were evicted when the sequence had `at` tokens, with all that is needed to restore them
Entry = TypeVar("Entry", bound="Dropped | DroppedPages")
Memory = TypeVar("Memory")


class EvictionJournal(Generic[Entry, Memory]):
    """The latest evictions, oldest first, and the state ("memory") of the eviction rule after each step; a rule without
    state notes `None`. What exceeds the limits is dropped from the oldest on, and going back there is refused."""

    def __init__(self, *, max_bytes: int, max_memory_bytes: int) -> None:
        self._max_bytes, self._max_memory_bytes = max_bytes, max_memory_bytes
        self._entries: deque[Entry] = deque()
        self._entry_bytes = 0
        self._memories: dict[int, tuple[Memory, int]] = {}  # by number of tokens: the rule's state and its bytes
        self._memory_bytes = 0
        self._stateless_from: int | None = None  # from this number of tokens on, the rule had no state
        self._floor = 0  # the cache cannot go back to fewer tokens than these

    @property
    def num_bytes(self) -> int:
        return self._entry_bytes + self._memory_bytes

    def bytes_without(self, memory: Memory | None) -> int:
        """`num_bytes` without those of `memory`, the rule's current state: if it is also the latest in the journal, it
        is counted as the rule's, not the journal's."""
        latest, num_bytes = next(reversed(self._memories.values()), (None, 0))
        return self.num_bytes - (num_bytes if latest is memory else 0)

    @property
    def never_evicted(self) -> bool:
        """Whether no row is missing from the cache by eviction, evictions that were undone not counted."""
        return not self._entries and not self._floor

    # ---- one step ------------------------------------------------------------------------------------------------

    def add(self, entry: Entry) -> None:
        num_bytes = entry.num_bytes  # computed first: a failure must leave the journal unchanged
        self._forget_oldest(self._max_bytes - num_bytes)
        self._entries.append(entry)
        self._entry_bytes += num_bytes

    def _forget_oldest(self, max_bytes: int) -> None:
        while self._entry_bytes > max_bytes and self._entries:
            oldest = self._entries.popleft()
            self._entry_bytes -= oldest.num_bytes
            self._floor = oldest.at

    def shrink(self, max_bytes: int) -> None:
        """Drop the oldest contents until at most `max_bytes` are left; the latest state of the rule stays."""
        while self._memory_bytes > max_bytes and len(self._memories) > 1:
            self._drop_memory(next(iter(self._memories)))
        self._forget_oldest(max(0, max_bytes - self._memory_bytes))

    def note_memory(self, num_tokens: int, memory: Memory | None, num_bytes: int) -> None:
        """Note the rule's state when the sequence had `num_tokens` tokens; None if the rule has no state."""
        if memory is None:
            self._stateless_from = num_tokens if self._stateless_from is None else self._stateless_from
            return
        self._drop_memory(num_tokens)
        self._memories[num_tokens] = memory, num_bytes
        self._memory_bytes += num_bytes
        while self._memory_bytes > self._max_memory_bytes and len(self._memories) > 1:
            self._drop_memory(next(iter(self._memories)))

    def _drop_memory(self, num_tokens: int) -> None:
        _, num_bytes = self._memories.pop(num_tokens, (None, 0))
        self._memory_bytes -= num_bytes

    # ---- going back ----------------------------------------------------------------------------------------------

    def knows_rows(self, num_tokens: int) -> bool:
        """Whether the rows held at `num_tokens` tokens can be restored."""
        return num_tokens >= self._floor

    def knows_memory(self, num_tokens: int) -> bool:
        """Whether the rule's state at `num_tokens` tokens is known."""
        is_stateless = self._stateless_from is not None and num_tokens >= self._stateless_from
        return num_tokens == 0 or is_stateless or num_tokens in self._memories

    def memory(self, num_tokens: int) -> Memory | None:
        """The rule's state at `num_tokens` tokens, which `knows_memory` says is known; None if the rule had no
        state."""
        known = self._memories.get(num_tokens)
        return None if known is None else known[0]

    def since(self, num_tokens: int) -> list[Entry]:
        """The evictions that happened after `num_tokens` tokens, oldest first."""
        return list(takewhile(lambda entry: entry.at > num_tokens, reversed(self._entries)))[::-1]

    def back_to(self, num_tokens: int) -> None:
        """Drop everything noted after `num_tokens` tokens."""
        while self._entries and self._entries[-1].at > num_tokens:
            self._entry_bytes -= self._entries.pop().num_bytes
        for later in [seen for seen in self._memories if seen > num_tokens]:
            self._drop_memory(later)
        if self._stateless_from is not None and num_tokens < self._stateless_from:
            self._stateless_from = None

    def forget(self, num_tokens: int) -> None:
        """Drop all that would restore an earlier state: from now on the cache cannot go back before the present, which
        has `num_tokens` tokens."""
        self._entries.clear()
        self._entry_bytes = 0
        for earlier in [seen for seen in self._memories if seen != num_tokens]:
            self._drop_memory(earlier)
        self._stateless_from = None if self._stateless_from is None else num_tokens
        self._floor = num_tokens

    def noted_bytes(self) -> Iterator[tuple[int, int]]:
        """The identity and bytes of every entry: copies of a journal share entries, which are to be counted once."""
        return ((id(entry), entry.num_bytes) for entry in self._entries)

    def copy(self) -> EvictionJournal[Entry, Memory]:
        """A journal with the same entries that can be changed independently of this one."""
        made: EvictionJournal[Entry, Memory] = EvictionJournal(
            max_bytes=self._max_bytes, max_memory_bytes=self._max_memory_bytes
        )
        made._entries, made._entry_bytes = deque(self._entries), self._entry_bytes
        made._memories, made._memory_bytes = dict(self._memories), self._memory_bytes
        made._stateless_from, made._floor = self._stateless_from, self._floor
        return made

    def __deepcopy__(self, memo: object) -> EvictionJournal[Entry, Memory]:
        """Share the entries with the copy: an entry is never changed once it is noted."""
        return self.copy()
