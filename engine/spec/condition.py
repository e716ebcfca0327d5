"""Conditions on the record of a step, as frozen data. `engine.spec.breakpoints` reads them from text; `str` of a
condition is a text that reads back as the same condition.

::

    entropy > 2 and not (token = "\n" or margin >= 5%)
    text ~ "\bdragons?\b"          attention(last 16) < 0.2          pages_allocated
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import inf, prod
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from engine.errors import InputError

if TYPE_CHECKING:
    import regex


# What a quantity is compared with: a number, a text or token id, a regular expression, nothing (a fact that holds or
# not), or, for the attention to a span of tokens, a number.
QuantityKind = Literal["number", "token", "text", "fact", "attention"]
Unit = Literal["", "nats", "ratio", "bytes"]
# What a quantity needs to have a value, or to differ from 0.
Need = Literal["", "pages", "host", "attention", "rule", "comparison"]


@dataclass(frozen=True)
class Quantity:
    """One quantity: its name, its kind, its meaning, a condition as an example, and the largest value (the smallest is
    0)."""

    name: str
    kind: QuantityKind
    meaning: str
    example: str
    unit: Unit = ""
    high: float = inf
    need: Need = ""
    is_count: bool = False  # written without a comparison it means "more than 0"


def _count(name: str, meaning: str, need: Need = "") -> Quantity:
    return Quantity(name, "number", meaning, name, need=need, is_count=True)


ROWS = (
    Quantity("token", "token", "the token just chosen, by its text or id", 'token = " cat"'),
    Quantity("fed", "token", "a token just computed, by its text or id", "fed = 42"),
    Quantity(
        "text", "text", "a match of a regular expression that ends in the newest token", r'text ~ "\bdragons?\b"'
    ),
    Quantity("entropy", "number", "entropy of the next token's distribution", "entropy > 2", "nats"),
    Quantity("probability", "number", "probability of the chosen token", "probability < 0.1", "ratio", 1.0),
    Quantity("margin", "number", "probability of the first token less that of the second", "margin < 5%", "ratio", 1.0),
    Quantity("surprisal", "number", "the largest surprisal of the tokens just computed", "surprisal > 6", "nats"),
    Quantity(
        "differs", "fact", "the compared run puts another token first", "differs", need="comparison"
    ),
    Quantity(
        "attention", "attention", "attention of the newest query to tokens, mean of all heads",
        "attention(0) > 50%", "ratio", 1.0, "attention",
    ),
    Quantity(
        "peak_attention", "attention", "attention of the newest query to tokens, in the head where it is most",
        "peak_attention(3-7) > 0.9", "ratio", 1.0, "attention",
    ),
    Quantity(
        "norm", "number", "the largest new row of K or V, against the median of its head's last 64, from 8 rows on",
        "norm > 3",
    ),
    _count("nonfinite", "NaN and Inf in the new rows and the logits"),
    _count("pages_allocated", "pages taken by a sequence", "pages"),
    _count("pages_shared", "pages that one more sequence refers to", "pages"),
    _count("pages_evicted", "pages that lost their place in the prefix cache", "pages"),
    _count("pages_moved", "pages copied to the host or back", "host"),
    _count("rows_evicted", "tokens that lost rows to the rule of the cache", "rule"),
    _count("preempted", "sequences that gave their pages up", "pages"),
    Quantity("stored", "number", "bytes of K and V in rows that hold tokens", "stored > 1 MiB", "bytes"),
    Quantity("reserved", "number", "bytes of storage of the cache", "reserved > 8 MiB", "bytes"),
    Quantity("step", "number", "number of the step", "step = 40"),
    Quantity("tokens", "number", "tokens of the sequence in the cache", "tokens = 100"),
    Quantity("sequence", "number", "number of the sequence", "sequence = 1 and entropy > 2"),
)  # fmt: skip

QUANTITIES = {row.name: row for row in ROWS}
FORMER_NAMES = {"rows_dropped": "rows_evicted"}  # in the conditions of saved sessions and settings


def names() -> str:
    """All names, separated by commas, for a message."""
    return ", ".join(QUANTITIES)


def help_lines() -> tuple[str, ...]:
    """Each quantity with an example and its meaning, for a terminal and a tool tip."""
    width = max(len(row.example) for row in ROWS)
    return tuple(f"{row.example:<{width}}  {row.meaning}{_in_unit(row)}" for row in ROWS)


def markdown_table() -> str:
    """The same table in Markdown, for the manual."""
    rows = (f"| `{row.example}` | {row.meaning}{_in_unit(row)} |" for row in ROWS)
    return "\n".join(("| write | about |", "| --- | --- |", *rows))


def _in_unit(row: Quantity) -> str:
    return " (nats)" if row.unit == "nats" else ""


HOW_TO_COMBINE = "and, or, not and parentheses combine them; a count alone means more than 0"


MAX_PATTERN = 200  # characters
MAX_REPEATS = 1000  # product of all counted repetitions of a pattern, since compiling expands them
SEARCH_S = 0.05  # how long one search may take
_COUNTED = re.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}")


class TooSlow(Exception):
    """The search for a pattern exceeded `SEARCH_S` seconds."""


def check_pattern(pattern: str) -> None:
    """Raise `InputError` if a pattern is invalid, or could take too long to compile."""
    if len(pattern) > MAX_PATTERN:
        raise InputError(f"A pattern of {len(pattern)} characters is too long: at most {MAX_PATTERN} are read.")
    counts = [
        max(int(end) for end in found.groups() if end) for found in _COUNTED.finditer(pattern) if any(found.groups())
    ]
    if prod(max(1, count) for count in counts) > MAX_REPEATS:
        raise InputError(f"The pattern repeats more than {MAX_REPEATS:,} times: write smaller numbers between braces.")
    _compiled(pattern)


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> regex.Pattern[str]:
    import regex  # imported late, so that the start of the window does not wait for it

    try:
        return regex.compile(pattern)
    except (regex.error, RecursionError, ValueError, OverflowError, KeyError, IndexError) as error:
        cause = str(error).splitlines()[0] if str(error) and not isinstance(error, RecursionError) else "too deep"
        raise InputError(
            f"“{pattern}” is no regular expression ({cause}): put \\ before signs meant as such."
        ) from None


def has_match(pattern: str, text: str) -> bool:
    """Whether the pattern matches somewhere in a short text. Raises `TooSlow`."""
    try:
        return _compiled(pattern).search(text, timeout=SEARCH_S) is not None
    except TimeoutError:
        raise TooSlow from None


def newest_match(pattern: str, text: str, known: int) -> str | None:
    """The first match that ends after the first `known` characters of the text; None if there is none. Raises
    `TooSlow`."""
    try:
        for found in _compiled(pattern).finditer(text, overlapped=True, timeout=SEARCH_S):
            if found.end() > known:
                return str(found.group())
    except TimeoutError:
        raise TooSlow from None
    return None


def with_quotes_escaped(pattern: str) -> str:
    """The same pattern with a backslash before every unescaped quote, so that it can be written between quotes."""
    return re.sub(r'\\.|"', lambda found: '\\"' if found.group() == '"' else found.group(), pattern, flags=re.DOTALL)


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


Truth = bool | None  # None: unknown


def outcomes(condition: Condition, of_term: Callable[[ConditionTerm], frozenset[Truth]]) -> frozenset[Truth]:
    """The possible outcomes of a condition, from those of its comparisons: one where each of them has one. Parts are
    treated as independent, so the result may contain an outcome that cannot happen, but misses none. Comparisons behind
    one that decides are not asked."""
    match condition:
        case ConditionTerm():
            return of_term(condition)
        case Not(part):
            return frozenset(None if each is None else not each for each in outcomes(part, of_term))
        case And(parts) | Or(parts):
            by, found = isinstance(condition, Or), list[frozenset[Truth]]()  # one part with the outcome `by` decides
            for part in parts:
                found.append(outcomes(part, of_term))
                if found[-1] == {by}:
                    return found[-1]
            everywhere = frozenset[Truth].intersection(*found)  # the opposite outcome needs all parts to have it
            return frozenset.union(*found) & {by, None} | everywhere & {not by}


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
