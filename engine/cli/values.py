"""Types of options: a text that is no value of its option is refused in one line that says what is."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

from engine.errors import InputError

SIZE_LIMIT = 2**31 - 1
BYTES_LIMIT = 2**63 - 1


def refusing(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """The same parser, which refuses as argparse expects it."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def whole(least: int = 1, most: int = SIZE_LIMIT) -> Callable[[str], int]:
    """Whole numbers from `least`, 0 or more, to `most`."""

    def parse(text: str) -> int:
        if text.isascii() and text.isdecimal() and len(text) <= 20 and least <= int(text) <= most:
            return int(text)
        raise InputError(f"'{text[:40]}' is no whole number from {least} to {most:,}.")

    return refusing(parse)


def number(above: float = -math.inf, most: float = math.inf) -> Callable[[str], float]:
    """Finite numbers above `above`, and up to `most`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isfinite(value) and above < value <= most:
            return value
        limits = [f"above {above:g}"] * (above > -math.inf) + [f"up to {most:,g}"] * (most < math.inf)
        raise InputError(f"'{text[:40]}' is no number {' and '.join(limits)}".rstrip() + ".")

    return refusing(parse)


def parse_counts(text: str) -> tuple[int, ...]:
    """Numbers of 1 or more, separated by commas, without duplicates."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdecimal() and len(part) < 10 and int(part) for part in parts):
        raise InputError(f"'{text[:60]}' is no list of counts: write numbers of 1 or more, like 128,512.")
    return tuple(dict.fromkeys(map(int, parts)))


def parse_token_ids(text: str) -> tuple[int, ...]:
    """Token ids like `1,2,3`."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise InputError(f"'{text[:60]}' is not a list of token ids: write numbers like 1,2,3.") from None


counts, token_ids = refusing(parse_counts), refusing(parse_token_ids)
