"""Reads a formula of bytes as it is printed, and multiplies it out."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import prod


def evaluated(text: str) -> Fraction:
    """`2·6·4·32·1,294·4/8` multiplied out. Raises ValueError for anything that is no product of numbers."""
    return prod((Fraction(factor.replace(",", "")) for factor in text.split("·")), start=Fraction(1))


def sum_of(texts: Iterable[str]) -> Fraction:
    """The sum of several formulas."""
    return sum(map(evaluated, texts), start=Fraction(0))
