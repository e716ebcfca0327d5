"""Regular expressions that a person typed, with limits on the time they may take to compile and to search."""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from engine.errors import InputError

if TYPE_CHECKING:
    import regex

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
