"""A log of tensors of the latest steps, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


class BoundedLog(Generic[T]):
    """Tensors by (step, seq_id). Keeps at most `max_bytes` of the newest entries, so that observing a session takes
    bounded memory; those of the newest step are kept however much they take."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[tuple[int, int], dict[int, T]] = OrderedDict()

    def put(self, key: tuple[int, int], entry: dict[int, T]) -> None:
        """Set the entry of a (step, seq_id), and drop the oldest entries beyond the limit."""
        self.drop(key)
        num_bytes = sum(e.nbytes for e in entry.values())
        self._entries[key] = entry
        self.num_bytes += num_bytes
        while self.num_bytes > self.max_bytes and (oldest := next(iter(self._entries)))[0] != key[0]:
            self.drop(oldest)

    def get(self, key: tuple[int, int] | None) -> dict[int, T] | None:
        """The entry of a (step, seq_id), None where none is kept or `key` is None."""
        return None if key is None else self._entries.get(key)

    def drop(self, key: tuple[int, int]) -> None:
        for entry in self._entries.pop(key, {}).values():
            self.num_bytes -= entry.nbytes

    def drop_steps(self, steps: set[int]) -> None:
        for key in [k for k in self._entries if k[0] in steps]:
            self.drop(key)

    def clear(self) -> None:
        self._entries.clear()
        self.num_bytes = 0
