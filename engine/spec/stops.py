"""Conditions that halt a run: what a person typed, read once."""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct

from engine.spec.condition import Condition
from engine.spec.condition_parser import parse

MAX_STOPS = 64


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
