"""A run of tokens that only grows, shared by everyone who knows a part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import is_
from typing import TypeVar, overload

T = TypeVar("T")


class Run(Sequence[T]):
    """The first `count` items of a list that only grows: an immutable view. Longer and shorter runs share the list as
    long as they agree, so that a run for every step copies nothing; where they part, the longer one is copied once."""

    __slots__ = ("_count", "_items")

    def __init__(self, items: Iterable[T] = (), count: int | None = None) -> None:
        self._items: list[T] = items if isinstance(items, list) else list(items)
        self._count = len(self._items) if count is None else count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._count)
            return self._items[start:stop] if step == 1 else [self._items[n] for n in range(start, stop, step)]
        if not -self._count <= index < self._count:
            raise IndexError(f"item {index} of {self._count}")
        return self._items[index if index >= 0 else self._count + index]

    def __iter__(self) -> Iterator[T]:
        return map(self._items.__getitem__, range(self._count))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Run) and other._items is self._items:
            return other._count == self._count
        if not isinstance(other, Run | list | tuple):
            return NotImplemented
        return len(other) == self._count and self[:] == (other[:] if isinstance(other, Run) else [*other])

    def __hash__(self) -> int:
        return hash((self._count, *self[-1:]))

    def __repr__(self) -> str:
        return repr(self[:])

    def first(self, count: int) -> Run[T]:
        """The first `count` items, or all of fewer; copies nothing."""
        return self if count >= self._count else Run(self._items, count)

    def extended(self, items: Iterable[T]) -> Run[T]:
        """This run and the items behind it. Copies nothing unless another run has grown differently."""
        new = [*items]
        count = self._count + len(new)
        if len(self._items) == self._count:
            self._items += new
        elif self._items[self._count : count] != new:
            return Run([*self[:], *new])
        return Run(self._items, count)

    def replaced(self, start: int, stop: int, items: Iterable[T]) -> Run[T]:
        """A copy with the items `start … stop` replaced by others."""
        return Run([*self[:start], *items, *self[stop:]])

    def shares_with(self, other: Run[T]) -> bool:
        """Whether both are of one list."""
        return self._items is other._items


def changed(runs: Iterable[Run[T]], change: Callable[[T], T]) -> list[Run[T]]:
    """The runs with other items; those that shared a list still do, and a run of which no item changes stays itself."""
    made: dict[int, list[T]] = {}
    found = []
    for run in runs:
        items = made.get(id(run._items))
        if items is None:
            items = [*map(change, run._items)]
            items = run._items if all(map(is_, items, run._items)) else items
            made[id(run._items)] = items
        found.append(run if items is run._items else Run(items, len(run)))
    return found


def num_shared(one: Sequence[object], other: Sequence[object]) -> int:
    """How many of the first items are the same objects; O(1) for runs of one list."""
    least = min(len(one), len(other))
    if isinstance(one, Run) and isinstance(other, Run) and one.shares_with(other):
        return least
    return next((n for n in range(least) if one[n] is not other[n]), least)
