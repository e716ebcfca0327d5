"""Reads conditions; see `engine.spec.condition`. What cannot be read is told in one sentence: where, and what may stand
there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches

from engine.errors import InputError
from engine.spec.condition import MAX_LENGTH, SIGNS, And, Condition, ConditionTerm, Not, Or, Sign, TokenSpan
from engine.spec.quantities import QUANTITIES, Quantity, names

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
    """A piece of the text: what it is, what is written, and at which character it begins."""

    kind: str
    text: str
    start: int


def parse(text: str) -> Condition:
    """The condition that a text says. Raises `InputError`."""
    if len(text) > MAX_LENGTH:
        raise InputError(f"A condition of {len(text):,} characters is too long: at most {MAX_LENGTH} are read.")
    if not text.strip():
        raise InputError(f"The condition is empty: write one like entropy > 2, about one of {names()}.")
    return _ConditionParser(text).parse()


class _ConditionParser:
    """Goes over the pieces of a text once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pieces = self._split()
        self._at = 0
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

    # ---- pieces --------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> _Lexeme:
        return self._pieces[self._at]

    def _take(self) -> _Lexeme:
        piece = self._now
        self._at += piece.kind != "end"
        return piece

    def _is(self, *words: str) -> bool:
        return self._now.kind in ("word", "sign") and self._now.text.lower() in words

    def _took(self, *words: str) -> bool:
        if found := self._is(*words):
            self._take()
        return found

    def _wrong(self, allowed: str) -> InputError:
        piece = self._now
        problem = "something is missing" if piece.kind == "end" else f"“{piece.text}” cannot stand"
        return self._error(piece.start, problem, allowed)

    # ---- the grammar ---------------------------------------------------------------------------------------------

    def parse(self) -> Condition:
        condition = self._either()
        if self._now.kind != "end":
            raise self._wrong("write and, or, or nothing more")
        return condition

    def _either(self) -> Condition:
        parts = [self._all()]
        while self._took("or"):
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _all(self) -> Condition:
        parts = [self._one()]
        while self._took("and"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _one(self) -> Condition:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(self._now.start, "it is nested too deep", f"at most {MAX_DEPTH} levels are read")
        if self._took("not"):
            condition: Condition = Not(self._one())
        elif self._took("("):
            condition = self._either()
            if not self._took(")"):
                raise self._wrong("close the parenthesis with )")
        else:
            condition = self._test()
        self._depth -= 1
        return condition

    def _test(self) -> ConditionTerm:
        row = self._quantity()
        span = self._span(row) if row.kind == "attention" else None
        if row.kind == "fact":
            return ConditionTerm(row.name)
        start = self._now
        sign = self._sign(row)
        if sign is None:
            return ConditionTerm(row.name, ">", 0.0)
        value = self._value(row, sign)
        try:
            return ConditionTerm(row.name, sign, value, span)
        except InputError as error:  # a pattern that is none
            raise InputError(f"At character {start.start + 1}: {error}") from None

    def _quantity(self) -> Quantity:
        if self._now.kind != "word" or self._is("and", "or"):
            raise self._wrong(f"name a quantity, one of {names()}")
        word = self._now.text.lower()
        if word not in QUANTITIES:
            near = [name for name in QUANTITIES if name.startswith(word)] or get_close_matches(word, QUANTITIES, 1)
            raise self._wrong(f"write {' or '.join(near)}" if near else f"name a quantity, one of {names()}")
        self._take()
        return QUANTITIES[word]

    def _sign(self, row: Quantity) -> Sign | None:
        """How the quantity is compared; None for a count that stands alone."""
        allowed, sign = SIGNS[row.kind], _OTHER_SIGNS.get(self._now.text, self._now.text)
        if self._now.kind == "sign" and sign in allowed:
            self._take()
            return sign
        if row.is_count and (self._now.kind == "end" or self._is("and", "or", ")")):
            return None
        raise self._wrong(f"compare {row.name} with {', '.join(allowed)}, as in {row.example}")

    def _value(self, row: Quantity, sign: Sign) -> float | str:
        if self._now.kind == "text" and row.kind in ("token", "text"):
            inside = self._take().text[1:-1]
            return inside if sign == "~" else re.sub(r"\\(.)", _unescaped, inside, flags=re.DOTALL)
        if row.kind in ("number", "attention") or (row.kind == "token" and sign != "~"):
            return self._number(row)
        raise self._wrong(f"write a text between quotes, as in {row.example}")

    def _number(self, row: Quantity) -> float:
        if self._now.kind != "number":
            what = "a token's text between quotes, or its id" if row.kind == "token" else "a number"
            raise self._wrong(f"write {what}, as in {row.example}")
        value = float(self._take().text.replace("_", ""))
        if value - value:  # written with an exponent that no number has
            raise self._error(self._pieces[self._at - 1].start, "the number is too large", "write a smaller one")
        if row.unit == "bytes" and self._is(*_UNITS):
            return value * _UNITS[self._take().text.lower()]
        if row.unit == "ratio" and self._took("%"):
            return value / 100
        if row.kind == "token" and (value < 0 or value != int(value)):
            raise self._error(self._pieces[self._at - 1].start, "a token id is a whole number", "write 0 or more")
        return value

    def _span(self, row: Quantity) -> TokenSpan:
        """The tokens between parentheses: a position, two with a dash, or `last` and how many."""
        if not self._took("("):
            raise self._wrong(f"write positions between parentheses, as in {row.example} or {row.name}(last 16)")
        start = self._now.start
        try:
            if self._took("last"):
                span = TokenSpan(newest=self._whole(row))
            else:
                first = last = self._whole(row)
                if self._now.kind == "number" and self._now.text.startswith("-"):
                    last = -self._whole(row, is_end=True)
                elif self._took("-"):
                    last = self._whole(row)
                span = TokenSpan(first, last)
        except InputError as error:
            raise error if str(error).startswith("At ") else self._error(start, *_two(error)) from None
        if not self._took(")"):
            raise self._wrong("close the parenthesis with )")
        return span

    def _whole(self, row: Quantity, *, is_end: bool = False) -> int:
        text = self._now.text
        if self._now.kind != "number" or not (text[1:] if is_end else text).isdecimal():
            raise self._wrong(f"write positions from 0 up, as in {row.example} or {row.name}(last 16)")
        return int(self._take().text)


def _two(error: InputError) -> tuple[str, str]:
    """The cause and the remedy of a sentence, to go into another one."""
    cause, _, remedy = str(error).rstrip(".").partition(": ")
    return cause[0].lower() + cause[1:], remedy


def _unescaped(found: re.Match[str]) -> str:
    return _UNESCAPED.get(found.group(1), found.group(1))
