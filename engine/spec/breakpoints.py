"""Breakpoints: conditions that halt a run, parsed from what a person typed, and why one can never hold."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache

from msgspec import Struct

from engine.errors import InputError
from engine.spec.cache import CacheSpec
from engine.spec.condition import (
    FORMER_NAMES,
    MAX_LENGTH,
    QUANTITIES,
    SIGNS,
    And,
    Condition,
    ConditionTerm,
    Need,
    Not,
    Or,
    Quantity,
    Sign,
    TokenSpan,
    Truth,
    names,
    outcomes,
)
from engine.spec.presets import cache_label

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
_UNESCAPED = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass(frozen=True)
class _Lexeme:
    """A token of the text: its kind, its characters, and the index of its first character."""

    kind: str
    text: str
    start: int


def parse(text: str) -> Condition:
    """Parse the text of a condition. Raises `InputError`."""
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
        parts = [self._conjunction()]
        while self._accept("or"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _conjunction(self) -> Condition:
        parts = [self._negation()]
        while self._accept("and"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

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
            return inside if sign == "~" else re.sub(r"\\(.)", _unescaped, inside, flags=re.DOTALL)
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


def _unescaped(found: re.Match[str]) -> str:
    return _UNESCAPED.get(found.group(1), found.group(1))


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


@lru_cache(maxsize=256)
def parsed(text: str) -> Condition:
    """Parse a condition and cache the result; raises an `InputError` that says where the text is wrong and what may be
    written there."""
    return parse(text)


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
    equal = 0.0 <= value <= high and (not is_whole or value == math.floor(value))
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
    if row.high < math.inf:
        return f"{row.name} is from 0 to {row.high:g}, or to 100 %; write a number between"
    return f"{row.name} is {'a whole number ' if row.is_count else ''}from 0 up; write such a number"
