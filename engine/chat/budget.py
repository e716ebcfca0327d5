"""Limits on what rendering a chat template may use: steps, time and characters. Templates come from model folders and
are not trusted."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from engine.errors import InputError

MAX_SECONDS = 2.0
MAX_STEPS = 1_000_000  # passes through loops, calls, filters, operations
MAX_VALUE = 16 << 20  # characters in one text
MAX_CHARS = 256 << 20  # characters in all texts made while rendering
MAX_ITEMS = 100_000  # items of one list; also the largest width or count
MAX_NESTED = 4 * MAX_ITEMS  # items of a list and the lists in it, each multiplied by its depth


class TemplateTooExpensive(InputError):
    """A template exceeds the limits, which no real one does."""


class RenderBudget:
    """Counts what one rendering uses; every method raises `TemplateTooExpensive` if a limit is exceeded."""

    def __init__(self) -> None:
        self._steps = self._chars = 0
        self._ends = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        """Count one loop pass, call or operation."""
        self._steps += 1
        if self._steps > MAX_STEPS or time.monotonic() > self._ends:
            raise TemplateTooExpensive(f"it does not end within {MAX_SECONDS:g} seconds and {MAX_STEPS:,} steps")

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the items, counting a step for each."""
        for item in items:
            self.step()
            yield item

    def count_value(self, value: Any) -> Any:
        """Count the characters or items of a new value, and return it."""
        self.step()
        if isinstance(value, str):
            self.check_length(len(value))
            self._chars += len(value)
            if self._chars > MAX_CHARS:
                raise TemplateTooExpensive(f"it makes more than {MAX_CHARS:,} characters")
        elif isinstance(value, list | tuple | dict) and len(value) > MAX_ITEMS:
            raise TemplateTooExpensive(f"it makes a list of more than {MAX_ITEMS:,} items")
        return value

    def count_nested(self, value: Any) -> Any:
        """Count a new value that may contain others, with everything in it, and return it."""
        self.total_size(value)
        return self.count_value(value)

    def total_size(self, value: Any) -> int:
        """The characters of a value and of everything in it, counted as often as it occurs. Nested lists can be small
        in memory, but showing, comparing or hashing them visits every item."""
        rest: list[tuple[Iterable[Any], int]] = [((value,), 0)]
        items = chars = 0
        while rest:
            held, depth = rest.pop()
            for each in held:
                if isinstance(each, str):
                    chars += len(each)
                elif isinstance(each, int):
                    chars += each.bit_length() // 3
                elif isinstance(each, Collection) and not isinstance(each, range):
                    items += (depth + 1) * len(each)
                    rest.append((each, depth + 1))
                    if isinstance(each, Mapping):
                        rest.append((each.values(), depth + 1))
                if items > MAX_NESTED:
                    raise TemplateTooExpensive(f"it makes a list of more than {MAX_NESTED:,} items")
            self.check_length(chars)
        self._steps += items // 16  # an item takes far less time than a step
        self.step()
        return chars

    @staticmethod
    def check_length(count: int) -> None:
        """Raise `TemplateTooExpensive` if a text of this length may not be made."""
        if count > MAX_VALUE:
            raise TemplateTooExpensive(f"it makes a text of more than {MAX_VALUE:,} characters")
