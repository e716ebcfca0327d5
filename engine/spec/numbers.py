"""Parses lists of numbers as people write them: `0-3, 7`."""

from __future__ import annotations

from engine.errors import InputError

MOST = 1 << 16


def parse_numbers(text: str, what: str) -> tuple[int, ...] | None:
    """The numbers in a text, ascending and without duplicates; None for the empty text and for `all`. `what` names in
    the plural what is numbered, for the message. Raises `InputError`."""
    if text.strip().lower() in ("", "all"):
        return None
    found: set[int] = set()
    for part in text.split(","):
        ends = [end.strip() for end in part.replace("–", "-").split("-")]
        if not all(end.isascii() and end.isdecimal() and len(end) < 6 for end in ends) or len(ends) > 2:
            raise InputError(f"'{part.strip()[:20]}' names no {what}: write numbers like 0-3, 7, or all.")
        first, last = int(ends[0]), int(ends[-1])
        if not first <= last < MOST:
            raise InputError(f"'{part.strip()[:20]}' names no {what}: write the smaller number first, as in 0-3.")
        found.update(range(first, last + 1))
    return tuple(sorted(found))
