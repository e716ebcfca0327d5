"""Stops: conditions that halt a run, parsed from what a person typed."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

from engine.errors import InputError
from engine.spec.condition import Condition
from engine.spec.condition_parser import parse

MAX_STOPS = 64
OFF = "# "  # prefix of the text of a disabled stop


class Stop(Struct, frozen=True, array_like=True, gc=False):
    """A condition that halts a run while it `is_enabled`, with an id. Raises `InputError` if the text is no
    condition."""

    id: int
    text: str
    is_enabled: bool = True

    def __post_init__(self) -> None:
        parsed(self.text)

    @property
    def condition(self) -> Condition:
        return parsed(self.text)


@lru_cache(maxsize=256)
def parsed(text: str) -> Condition:
    """Parse a condition and cache the result; raises an `InputError` that says where the text is wrong and what may be
    written there."""
    return parse(text)


def written_stops(stops: Iterable[Stop]) -> tuple[str, ...]:
    """The texts of stops as files keep them: those of disabled ones begin with `OFF`."""
    return tuple(("" if stop.is_enabled else OFF) + stop.text for stop in stops)


def read_stops(texts: Iterable[str]) -> tuple[tuple[Stop, ...], tuple[str, ...]]:
    """Read the texts that `written_stops` wrote: at most `MAX_STOPS` stops, and the texts that are no condition."""
    found, others = list[Stop](), list[str]()
    for text in texts:
        try:
            stop = Stop(len(found) + 1, text.removeprefix(OFF), not text.startswith(OFF))
        except InputError:
            others.append(text)
        else:
            found.append(stop)
    return tuple(found[:MAX_STOPS]), tuple(others)
