"""Conditions on the record of a step, and the breakpoints that halt a run by them: frozen data, read from a text. `str`
of a condition is a text that reads back as the same condition.

::

    entropy > 2 and not (token = "\n" or margin >= 5%)
    text ~ "\bdragons?\b"          attention(last 16) < 0.2          pages_allocated
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from math import floor, inf, prod
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from engine.errors import InputError
from engine.spec.cache import CacheSpec, cache_label

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


# ---- patterns --------------------------------------------------------------------------------------------------------

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


# ---- conditions ------------------------------------------------------------------------------------------------------

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
_UNESCAPED = {"n": "\n", "t": "\t", "r": "\r"}  # behind a backslash; other characters stand for themselves


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


def unescaped(inside: str) -> str:
    """The text that stands between quotes in a condition, without escapes."""
    return re.sub(r"\\(.)", lambda found: _UNESCAPED.get(found[1], found[1]), inside, flags=re.DOTALL)


def number(value: float) -> str:
    """A number as it is written in a condition: whole numbers without a decimal point."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def _bracketed(part: Condition) -> str:
    return f"({part})" if isinstance(part, And | Or) else str(part)


# ---- from a text -----------------------------------------------------------------------------------------------------

MAX_DEPTH = 20
_UNITS = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 1000, "mb": 10**6, "gb": 10**9}
_OTHER_SIGNS = {"==": "=", "≠": "!=", "≤": "<=", "≥": ">=", "<>": "!="}
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>-?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<word>[^\W\d]\w*)
    |(?P<text>"(?:\\.|[^"\\])*")
    |(?P<sign><>|==|!=|<=|>=|[≠≤≥=<>~()%,-]))""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class _Lexeme:
    """A token of the text: its kind, its characters, and the index of its first character."""

    kind: str
    text: str
    start: int


@lru_cache(maxsize=256)
def parsed(text: str) -> Condition:
    """The condition that a text says. Raises an `InputError` that says where the text is wrong and what may be written
    there."""
    if len(text) > MAX_LENGTH:
        raise InputError(f"A condition of {len(text):,} characters is too long: at most {MAX_LENGTH} are read.")
    if not text.strip():
        raise InputError(f"The condition is empty: write one like entropy > 2, about one of {names()}.")
    return _ConditionParser(text).parse()


class _ConditionParser:
    """A recursive-descent parser that reads the lexemes of a text from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lexemes = self._split()
        self._index = 0
        self._depth = 0

    def _split(self) -> list[_Lexeme]:
        pieces, at = [], 0
        while self._text[at:].strip():
            found = _TOKEN.match(self._text, at)
            if found is None:
                at += len(self._text[at:]) - len(self._text[at:].lstrip())
                if self._text[at] == '"':
                    raise self._error(at, "the text has no end", 'close it with "')
                raise self._error(at, f"“{self._text[at]}” means nothing", "write a quantity like entropy")
            kind = str(found.lastgroup)
            pieces.append(_Lexeme(kind, found.group(kind), found.start(kind)))
            at = found.end()
        return [*pieces, _Lexeme("end", "", len(self._text.rstrip()))]

    def _error(self, at: int, problem: str, allowed: str) -> InputError:
        return InputError(f"At character {at + 1} {problem}: {allowed}.")

    # ---- lexemes -------------------------------------------------------------------------------------------------

    @property
    def _current(self) -> _Lexeme:
        return self._lexemes[self._index]

    def _advance(self) -> _Lexeme:
        piece = self._current
        self._index += piece.kind != "end"
        return piece

    def _is(self, *words: str) -> bool:
        return self._current.kind in ("word", "sign") and self._current.text.lower() in words

    def _accept(self, *words: str) -> bool:
        if found := self._is(*words):
            self._advance()
        return found

    def _unexpected(self, allowed: str) -> InputError:
        piece = self._current
        problem = "something is missing" if piece.kind == "end" else f"“{piece.text}” cannot stand"
        return self._error(piece.start, problem, allowed)

    # ---- the grammar ---------------------------------------------------------------------------------------------

    def parse(self) -> Condition:
        condition = self._disjunction()
        if self._current.kind != "end":
            raise self._unexpected("write and, or, or nothing more")
        return condition

    def _disjunction(self) -> Condition:
        return self._joined("or", Or, lambda: self._joined("and", And, self._negation))

    def _joined(self, word: str, kind: type[And | Or], part: Callable[[], Condition]) -> Condition:
        parts = [part()]
        while self._accept(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else kind(tuple(parts))

    def _negation(self) -> Condition:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(self._current.start, "it is nested too deep", f"at most {MAX_DEPTH} levels are read")
        if self._accept("not"):
            condition: Condition = Not(self._negation())
        elif self._accept("("):
            condition = self._disjunction()
            if not self._accept(")"):
                raise self._unexpected("close the parenthesis with )")
        else:
            condition = self._comparison()
        self._depth -= 1
        return condition

    def _comparison(self) -> ConditionTerm:
        row = self._quantity()
        span = self._span(row) if row.kind == "attention" else None
        if row.kind == "fact":
            return ConditionTerm(row.name)
        start = self._current
        sign = self._sign(row)
        if sign is None:
            return ConditionTerm(row.name, ">", 0.0)
        value = self._value(row, sign)
        try:
            return ConditionTerm(row.name, sign, value, span)
        except InputError as error:  # an invalid regular expression
            raise InputError(f"At character {start.start + 1}: {error}") from None

    def _quantity(self) -> Quantity:
        if self._current.kind != "word" or self._is("and", "or"):
            raise self._unexpected(f"name a quantity, one of {names()}")
        word = self._current.text.lower()
        word = FORMER_NAMES.get(word, word)
        if word not in QUANTITIES:
            near = [name for name in QUANTITIES if name.startswith(word)] or get_close_matches(word, QUANTITIES, 1)
            raise self._unexpected(f"write {' or '.join(near)}" if near else f"name a quantity, one of {names()}")
        self._advance()
        return QUANTITIES[word]

    def _sign(self, row: Quantity) -> Sign | None:
        """Read the comparison sign of a quantity; None for a count written alone."""
        allowed, sign = SIGNS[row.kind], _OTHER_SIGNS.get(self._current.text, self._current.text)
        if self._current.kind == "sign" and sign in allowed:
            self._advance()
            return sign
        if row.is_count and (self._current.kind == "end" or self._is("and", "or", ")")):
            return None
        raise self._unexpected(f"compare {row.name} with {', '.join(allowed)}, as in {row.example}")

    def _value(self, row: Quantity, sign: Sign) -> float | str:
        if self._current.kind == "text" and row.kind in ("token", "text"):
            inside = self._advance().text[1:-1]
            return inside if sign == "~" else unescaped(inside)
        if row.kind in ("number", "attention") or (row.kind == "token" and sign != "~"):
            return self._number(row)
        raise self._unexpected(f"write a text between quotes, as in {row.example}")

    def _number(self, row: Quantity) -> float:
        if self._current.kind != "number":
            what = "a token's text between quotes, or its id" if row.kind == "token" else "a number"
            raise self._unexpected(f"write {what}, as in {row.example}")
        value = float(self._advance().text.replace("_", ""))
        if value - value:  # the exponent was so large that the number became infinite
            raise self._error(self._lexemes[self._index - 1].start, "the number is too large", "write a smaller one")
        if row.unit == "bytes" and self._is(*_UNITS):
            return value * _UNITS[self._advance().text.lower()]
        if row.unit == "ratio" and self._accept("%"):
            return value / 100
        if row.kind == "token" and (value < 0 or value != int(value)):
            raise self._error(self._lexemes[self._index - 1].start, "a token id is a whole number", "write 0 or more")
        return value

    def _span(self, row: Quantity) -> TokenSpan:
        """Read the tokens between parentheses: a position, a range with a dash, or `last` and a number."""
        if not self._accept("("):
            raise self._unexpected(f"write positions between parentheses, as in {row.example} or {row.name}(last 16)")
        start = self._current.start
        try:
            if self._accept("last"):
                span = TokenSpan(newest=self._position(row))
            else:
                first = last = self._position(row)
                if self._current.kind == "number" and self._current.text.startswith("-"):
                    last = -self._position(row, is_end=True)
                elif self._accept("-"):
                    last = self._position(row)
                span = TokenSpan(first, last)
        except InputError as error:
            raise error if str(error).startswith("At ") else self._error(start, *_cause_and_remedy(error)) from None
        if not self._accept(")"):
            raise self._unexpected("close the parenthesis with )")
        return span

    def _position(self, row: Quantity, *, is_end: bool = False) -> int:
        text = self._current.text
        if self._current.kind != "number" or not (text[1:] if is_end else text).isdecimal():
            raise self._unexpected(f"write positions from 0 up, as in {row.example} or {row.name}(last 16)")
        return int(self._advance().text)


def _cause_and_remedy(error: InputError) -> tuple[str, str]:
    """Split the message of an error into its cause and its remedy, so that it can be part of another sentence."""
    cause, _, remedy = str(error).rstrip(".").partition(": ")
    return cause[0].lower() + cause[1:], remedy


# ---- breakpoints -----------------------------------------------------------------------------------------------------

MAX_BREAKPOINTS = 64
OFF = "# "  # prefix of the text of a disabled breakpoint


class Breakpoint(Struct, frozen=True, array_like=True, gc=False):
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


def written_breakpoints(breakpoints: Iterable[Breakpoint]) -> tuple[str, ...]:
    """The texts of breakpoints as files keep them: those of disabled ones begin with `OFF`."""
    return tuple(("" if stop.is_enabled else OFF) + stop.text for stop in breakpoints)


def read_breakpoints(texts: Iterable[str]) -> tuple[tuple[Breakpoint, ...], tuple[str, ...]]:
    """Read the texts that `written_breakpoints` wrote: at most `MAX_BREAKPOINTS` of them, and the texts that are no
    condition."""
    found, others = list[Breakpoint](), list[str]()
    for text in texts:
        try:
            stop = Breakpoint(len(found) + 1, text.removeprefix(OFF), not text.startswith(OFF))
        except InputError:
            others.append(text)
        else:
            found.append(stop)
    return tuple(found[:MAX_BREAKPOINTS]), tuple(others)


# ---- why one can never hold ------------------------------------------------------------------------------------------

ANYTHING: frozenset[Truth] = frozenset((True, False, None))


@dataclass(frozen=True)
class ConditionSetting:
    """What conditions are evaluated in: the cache mode, whether the model's attention is captured, the most tokens that
    a sequence can have (None: no limit), and whether a comparison of two runs is active."""

    cache: CacheSpec
    captures_attention: bool = True
    max_tokens: int | None = None
    is_compared: bool = True


def why_never(condition: Condition, setting: ConditionSetting) -> str:
    """One sentence with a remedy that says why a condition can never hold; empty if it can."""
    if _can_hold(condition, setting):
        return ""
    return _reason(condition, setting) or "It contradicts itself, so it never holds: change it."


def _can_hold(condition: Condition, setting: ConditionSetting) -> bool:
    return True in outcomes(condition, lambda test: _outcomes_of_comparison(test, setting))


def _outcomes_of_comparison(test: ConditionTerm, setting: ConditionSetting) -> frozenset[Truth]:
    row = test.row
    if _missing(row.need, setting):
        return frozenset((None,)) if row.need in ("attention", "comparison") else _outcomes_up_to(test, 0.0)
    if row.kind in ("number", "attention"):
        high = row.high
        if row.name == "tokens" and setting.max_tokens is not None:
            high = float(setting.max_tokens)
        return _outcomes_up_to(test, high)
    return ANYTHING


def _outcomes_up_to(test: ConditionTerm, high: float) -> frozenset[Truth]:
    """The possible outcomes of comparing a number from 0 to `high`. Counts and the like are whole numbers and never
    unknown."""
    value, sign = float(test.value or 0.0), test.sign
    is_whole = test.row.is_count or test.quantity in ("step", "tokens", "sequence", "stored", "reserved")
    below, above = value > 0.0, high > value
    equal = 0.0 <= value <= high and (not is_whole or value == floor(value))
    can = {"<": below, "<=": below or equal, ">": above, ">=": above or equal, "=": equal, "!=": below or above}
    cannot = {"<": above or equal, "<=": above, ">": below or equal, ">=": below, "=": below or above, "!=": equal}
    found = {True for _ in range(can[str(sign)])} | {False for _ in range(cannot[str(sign)])}
    return frozenset(found if is_whole or high == 0.0 else {*found, None})


def _missing(need: Need, setting: ConditionSetting) -> str:
    """What a quantity needs and the setting lacks, with a remedy; empty if nothing is missing."""
    cache = setting.cache
    match need:
        case "pages" if not cache.is_paged:
            return f"{cache_label(cache)} has no pages: take a paged cache"
        case "host" if cache.layout != "host":
            return f"{cache_label(cache)} moves no pages: take the offloaded cache"
        case "rule" if cache.retention.keeps_all:
            return f"{cache_label(cache)} keeps all rows: take one that evicts some"
        case "attention" if not setting.captures_attention:
            return "no attention of this model is captured: take one that runs our attention"
        case "comparison" if not setting.is_compared:
            return "no comparison runs: start one"
    return ""


def _reason(condition: Condition, setting: ConditionSetting) -> str:
    """The sentence for the first comparison that keeps the condition from being true."""
    for test in _blamed(condition, setting):
        if lacks := _missing(test.row.need, setting):
            return f"“{test}” cannot hold: {lacks}."
        return f"“{test}” cannot hold: {_range_words(test.row, setting)}."
    return ""


def _blamed(condition: Condition, setting: ConditionSetting) -> list[ConditionTerm]:
    """The comparisons that keep a condition from being true."""
    if _can_hold(condition, setting):
        return []
    match condition:
        case ConditionTerm():
            return [condition]
        case Not(ConditionTerm() as inner):
            return [inner] if inner.row.need else []
        case And(parts) | Or(parts):
            return [test for part in parts for test in _blamed(part, setting)]
        case Not():
            return []


def _range_words(row: Quantity, setting: ConditionSetting) -> str:
    if row.name == "tokens" and setting.max_tokens is not None:
        return f"a sequence has 0 to {setting.max_tokens:,} tokens here; write a whole number between"
    if row.high < inf:
        return f"{row.name} is from 0 to {row.high:g}, or to 100 %; write a number between"
    return f"{row.name} is {'a whole number ' if row.is_count else ''}from 0 up; write such a number"
