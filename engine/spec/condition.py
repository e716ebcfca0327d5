"""Conditions on the record of a step, as frozen data. `engine.spec.stops` reads them from text; `str` of a condition is
a text that reads back as the same condition.

::

    entropy > 2 and not (token = "\n" or margin >= 5%)
    text ~ "\bdragons?\b"          attention(last 16) < 0.2          pages_allocated
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from engine.errors import InputError
from engine.spec.pattern import check_pattern, with_quotes_escaped
from engine.spec.quantities import QUANTITIES, Quantity

Sign = Literal["=", "!=", "<", "<=", ">", ">=", "~"]
SIGNS: dict[str, tuple[Sign, ...]] = {
    "number": ("=", "!=", "<", "<=", ">", ">="),
    "attention": ("=", "!=", "<", "<=", ">", ">="),
    "token": ("=", "!=", "~"),
    "text": ("~",),
    "fact": (),
}
MAX_LENGTH = 500  # characters in a condition
MAX_POSITION = 1 << 31
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


class TokenSpan(Struct, frozen=True, array_like=True, gc=False):
    """The tokens whose attention is summed: positions `first … last` inclusive, or the newest `newest` tokens."""

    first: int = 0
    last: int = 0
    newest: int | None = None

    def __post_init__(self) -> None:
        if self.newest is not None and not 1 <= self.newest < MAX_POSITION:
            raise InputError(f"The last {self.newest} tokens are none: write 1 or more, like last 16.")
        if not 0 <= self.first <= self.last < MAX_POSITION:
            raise InputError(f"Positions {self.first}-{self.last} are none: write the smaller first, from 0 up.")

    def __str__(self) -> str:
        if self.newest is not None:
            return f"last {self.newest}"
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


@dataclass(frozen=True)
class ConditionTerm:
    """One comparison: a quantity (for attention, over a `span` of tokens) with a number, a text or a token id. A
    quantity of kind `fact` is compared with nothing: `sign` and `value` are None."""

    quantity: str
    sign: Sign | None = None
    value: float | str | None = None
    span: TokenSpan | None = None

    def __post_init__(self) -> None:
        if self.sign == "~":
            object.__setattr__(self, "value", with_quotes_escaped(str(self.value)))
            check_pattern(str(self.value))

    @property
    def row(self) -> Quantity:
        return QUANTITIES[self.quantity]

    def __str__(self) -> str:
        name = self.quantity if self.span is None else f"{self.quantity}({self.span})"
        return name if self.sign is None else f"{name} {self.sign} {self._written()}"

    def _written(self) -> str:
        if self.sign == "~":
            return f'"{self.value}"'
        return quoted(self.value) if isinstance(self.value, str) else number(self.value or 0.0)


@dataclass(frozen=True)
class Not:
    """Holds if the part does not."""

    part: Condition

    def __str__(self) -> str:
        return f"not {_bracketed(self.part)}"


@dataclass(frozen=True)
class And:
    """Holds if all parts do, of which there are two or more."""

    parts: tuple[Condition, ...]

    def __str__(self) -> str:
        return " and ".join(map(_bracketed, self.parts))


@dataclass(frozen=True)
class Or:
    """Holds if at least one part does, of two or more."""

    parts: tuple[Condition, ...]

    def __str__(self) -> str:
        return " or ".join(map(_bracketed, self.parts))


Condition = ConditionTerm | Not | And | Or


def comparisons_of(condition: Condition) -> tuple[ConditionTerm, ...]:
    """Every comparison of a condition, in the order in which it is written."""
    match condition:
        case ConditionTerm():
            return (condition,)
        case Not(part):
            return comparisons_of(part)
        case And(parts) | Or(parts):
            return tuple(test for part in parts for test in comparisons_of(part))


def spans_of(condition: Condition) -> tuple[TokenSpan, ...]:
    """The spans of tokens whose attention a condition reads, each once."""
    return tuple(dict.fromkeys(test.span for test in comparisons_of(condition) if test.span is not None))


def quoted(text: str) -> str:
    """A text between quotes and with escapes, as it is written in a condition."""
    return '"' + "".join(_ESCAPES.get(character, character) for character in text) + '"'


def number(value: float) -> str:
    """A number as it is written in a condition: whole numbers without a decimal point."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def _bracketed(part: Condition) -> str:
    return f"({part})" if isinstance(part, And | Or) else str(part)
