"""What makes a cache that evicts reversible: rows that went, and what its rule remembered, in a bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import takewhile
from typing import Generic, Protocol, TypeVar


class EvictedMark(Protocol):
    """Rows that were evicted when `at` tokens had been seen, with all that is needed to restore them."""

    @property
    def at(self) -> int: ...

    @property
    def num_bytes(self) -> int: ...


Entry = TypeVar("Entry", bound=EvictedMark)
Memory = TypeVar("Memory")


class EvictionJournal(Generic[Entry, Memory]):
    """The latest evictions, oldest first, and a rule's memory after each step; `None` is the memory of a rule that
    remembers nothing. What exceeds the bounds is forgotten from the oldest on, and going back there is refused."""

    def __init__(self, *, max_bytes: int, max_memory_bytes: int) -> None:
        self._max_bytes, self._max_memory_bytes = max_bytes, max_memory_bytes
        self._entries: deque[Entry] = deque()
        self._entry_bytes = 0
        self._memories: dict[int, tuple[Memory, int]] = {}  # by tokens seen, with its bytes
        self._memory_bytes = 0
        self._forgets_from: int | None = None  # with so many tokens and more, nothing is remembered
        self._floor = 0  # states with fewer tokens cannot be restored

    @property
    def num_bytes(self) -> int:
        return self._entry_bytes + self._memory_bytes

    def bytes_beside(self, memory: Memory | None) -> int:
        """`num_bytes` without those of the `memory` that the rule goes on from: it is the latest noted, and the rule's
        own."""
        latest, num_bytes = next(reversed(self._memories.values()), (None, 0))
        return self.num_bytes - (num_bytes if latest is memory else 0)

    @property
    def never_evicted(self) -> bool:
        """Whether no row was ever evicted, going back considered."""
        return not self._entries and not self._floor

    # ---- one step ------------------------------------------------------------------------------------------------

    def add(self, entry: Entry) -> None:
        num_bytes = entry.num_bytes  # of many tensors: all that can fail comes before the entry is there
        self._forget_oldest(self._max_bytes - num_bytes)
        self._entries.append(entry)
        self._entry_bytes += num_bytes

    def _forget_oldest(self, max_bytes: int) -> None:
        while self._entry_bytes > max_bytes and self._entries:
            oldest = self._entries.popleft()
            self._entry_bytes -= oldest.num_bytes
            self._floor = oldest.at

    def shrink(self, max_bytes: int) -> None:
        """Forget from the oldest on what is beyond so many bytes."""
        while self._memory_bytes > max_bytes and len(self._memories) > 1:
            self._drop_memory(next(iter(self._memories)))
        self._forget_oldest(max(0, max_bytes - self._memory_bytes))

    def note_memory(self, num_tokens: int, memory: Memory | None, num_bytes: int) -> None:
        """What the rule remembers with so many tokens."""
        if memory is None:
            self._forgets_from = num_tokens if self._forgets_from is None else self._forgets_from
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
        """Whether the rows held with so many tokens can be told."""
        return num_tokens >= self._floor

    def knows_memory(self, num_tokens: int) -> bool:
        """Whether it is known what the rule remembered with so many tokens."""
        forgets = self._forgets_from is not None and num_tokens >= self._forgets_from
        return num_tokens == 0 or forgets or num_tokens in self._memories

    def memory(self, num_tokens: int) -> Memory | None:
        """What the rule remembered with so many tokens, as far as `knows_memory` says."""
        known = self._memories.get(num_tokens)
        return None if known is None else known[0]

    def since(self, num_tokens: int) -> list[Entry]:
        """What was evicted after so many tokens, oldest first."""
        return list(takewhile(lambda entry: entry.at > num_tokens, reversed(self._entries)))[::-1]

    def back_to(self, num_tokens: int) -> None:
        """Forget everything later."""
        while self._entries and self._entries[-1].at > num_tokens:
            self._entry_bytes -= self._entries.pop().num_bytes
        for later in [seen for seen in self._memories if seen > num_tokens]:
            self._drop_memory(later)
        if self._forgets_from is not None and num_tokens < self._forgets_from:
            self._forgets_from = None

    def forget(self, num_tokens: int) -> None:
        """From here on nothing before the present, which has so many tokens, can be restored."""
        self._entries.clear()
        self._entry_bytes = 0
        for earlier in [seen for seen in self._memories if seen != num_tokens]:
            self._drop_memory(earlier)
        self._forgets_from = None if self._forgets_from is None else num_tokens
        self._floor = num_tokens

    def noted_bytes(self) -> Iterator[tuple[int, int]]:
        """The bytes of every entry, by its identity: copies share entries."""
        return ((id(entry), entry.num_bytes) for entry in self._entries)

    def copy(self) -> EvictionJournal[Entry, Memory]:
        """The same entries, to be changed apart."""
        made: EvictionJournal[Entry, Memory] = EvictionJournal(
            max_bytes=self._max_bytes, max_memory_bytes=self._max_memory_bytes
        )
        made._entries, made._entry_bytes = deque(self._entries), self._entry_bytes
        made._memories, made._memory_bytes = dict(self._memories), self._memory_bytes
        made._forgets_from, made._floor = self._forgets_from, self._floor
        return made

    def __deepcopy__(self, memo: object) -> EvictionJournal[Entry, Memory]:
        """What is noted is never written again, so a copy shares it."""
        return self.copy()
