"""What a chat template may spend: steps, time and characters. Templates come from model folders, and nobody has read
them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from engine.errors import InputError

MAX_SECONDS = 2.0
MAX_STEPS = 1_000_000  # passes through loops, calls, filters, operations
MAX_VALUE = 16 << 20  # characters of one text
MAX_CHARS = 256 << 20  # of all texts that are made on the way
MAX_ITEMS = 100_000  # of one list, and as a number that a width or a count may be
MAX_NESTED = 4 * MAX_ITEMS  # of a list with the lists in it, each item as often as it is deep


class TemplateSpends(InputError):
    """A template wants more than any real one does."""


class RenderBudget:
    """Counts what one rendering spends; every method raises `TemplateSpends` beyond the limits."""

    def __init__(self) -> None:
        self._steps = self._chars = 0
        self._ends = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        """One pass, call or operation."""
        self._steps += 1
        if self._steps > MAX_STEPS or time.monotonic() > self._ends:
            raise TemplateSpends(f"it does not end within {MAX_SECONDS:g} seconds and {MAX_STEPS:,} steps")

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        """The same, each a step."""
        for item in items:
            self.step()
            yield item

    def made(self, value: Any) -> Any:
        """A value that came to be: its characters or items count."""
        self.step()
        if isinstance(value, str):
            self.check_length(len(value))
            self._chars += len(value)
            if self._chars > MAX_CHARS:
                raise TemplateSpends(f"it makes more than {MAX_CHARS:,} characters")
        elif isinstance(value, list | tuple | dict) and len(value) > MAX_ITEMS:
            raise TemplateSpends(f"it makes a list of more than {MAX_ITEMS:,} items")
        return value

    def built(self, value: Any) -> Any:
        """A value that may hold others: what is in it counts as often as it is in it, as it would be shown."""
        self.weight(value)
        return self.made(value)

    def weight(self, value: Any) -> int:
        """The characters of a value and of all that it holds. Lists of lists stay small in memory, but whatever shows,
        compares or hashes them passes through every item."""
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
                    raise TemplateSpends(f"it makes a list of more than {MAX_NESTED:,} items")
            self.check_length(chars)
        self._steps += items // 16  # much quicker than steps are
        self.step()
        return chars

    @staticmethod
    def check_length(count: int) -> None:
        """Before a text of so many characters is made."""
        if count > MAX_VALUE:
            raise TemplateSpends(f"it makes a text of more than {MAX_VALUE:,} characters")
