"""Conditions that halt a run: what a person typed, read once."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

from engine.errors import InputError
from engine.spec.condition import Condition
from engine.spec.condition_parser import parse

MAX_STOPS = 64
OFF = "# "  # before the text of a stop that is off


class Stop(Struct, frozen=True, array_like=True, gc=False):
    """A condition that halts a run while it `is_enabled`, under an id of its own. A text that is none is refused."""

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
    """The condition that a text says; raises an `InputError` that tells where it cannot be read and what may stand
    there."""
    return parse(text)


def written_stops(stops: Iterable[Stop]) -> tuple[str, ...]:
    """Stops as they are kept in a file: the text of each, behind a sign where it is off."""
    return tuple(("" if stop.is_enabled else OFF) + stop.text for stop in stops)


def read_stops(texts: Iterable[str]) -> tuple[tuple[Stop, ...], tuple[str, ...]]:
    """The stops that were written so, as many as there may be, and the texts that are none."""
    found, others = list[Stop](), list[str]()
    for text in texts:
        try:
            stop = Stop(len(found) + 1, text.removeprefix(OFF), not text.startswith(OFF))
        except InputError:
            others.append(text)
        else:
            found.append(stop)
    return tuple(found[:MAX_STOPS]), tuple(others)
