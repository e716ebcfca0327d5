"""What the arithmetic of pictures answers, at its edges and beside them, as approved (`approved/answers.txt`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from app.draw import colormap, format
from tests.approve import approve, in_words

APPROVED = Path(__file__).parent / "approved"
NAN, INF = float("nan"), float("inf")
SIZES = (0, 1, 1023, 1024, 1025, 10_239, 1 << 20, 1_048_575, 5 << 30, 1023 << 30)
NUMBERS = (
    0.0, -0.0, 1e-9, 0.00049, 0.0005, 0.004, 0.05, 0.0949, 0.5, 0.995, 0.9995, 1.0, 1.5, 9.95, 9.995, 12.34, 99.5,
    999.5, 1234.5, 99_999.5, 1e7, -3.14159, -0.002, NAN, INF, -INF,
)  # fmt: skip


def calls() -> Iterator[tuple[Callable[..., Any], Iterator[tuple[Any, ...]] | list[tuple[Any, ...]]]]:
    yield format.byte_size, [(one,) for one in SIZES]
    yield format.thousands, [(one,) for one in (0, 999, 1000, -1234, 1_000_000)]
    yield format.milliseconds, [(one,) for one in NUMBERS[:22]]
    yield format.percent, [(one,) for one in (0.0, 1e-6, 0.0004, 0.0005, 0.01, 0.0995, 0.5, 0.9994, 0.9996, 1.0, NAN)]
    yield format.exact, [(one,) for one in NUMBERS]
    yield format.brief, [(one, digits) for one in NUMBERS for digits in (1, 2, 3)]
    yield format.decimal, [(one, digits) for one in NUMBERS for digits in (0, 2)]
    yield format.cell_number, [(one, wide) for one in NUMBERS for wide in (24.0, 36.0, 60.0)]
    yield format.times, [(one,) for one in (0.0, 0.3, 0.999, 1.0, 1.04, 2.5, 99.6, 1234.0)]
    yield format.divergence_words, [(one,) for one in (0.0, 1e-7, 1e-4, 0.01, 1.0, 12.5, NAN, INF)]
    yield format.bytes_words, list(product((0, 1024, 5 << 20), (0, 512, 9 << 20)))
    yield format.byte_share, list(product((0, 1024, 5 << 20), (0, 512, 9 << 20)))
    yield format.token_label, list(product(("", " a", "\n", "a\tb", "\u202e", "é�", "a" * 30, " " * 3), (1, 4, 12)))
    yield format.shortened, list(product(("", "abc", "abcd", "abcde", "a b c d e f"), (1, 3, 4, 5)))
    yield (
        format.whole_words,
        [(text, room, len) for text in ("one two three", "one · two · three", "") for room in range(0, 20, 2)],
    )
    yield colormap.rgb, [("#102030",), ("#ffffff",)]
    table = colormap.signed_table("#62b5ff", "#121417", "#ffaa54", "#ff00ff")
    yield colormap.signed_table, [("#62b5ff", "#121417", "#ffaa54", "#ff00ff")]
    yield colormap.magnitude_table, [("#121417", "#62b5ff", "#ffffff", "#ff00ff")]
    yield colormap.blend, [(("#000000", "#ffffff"), count) for count in (1, 2, 5)]
    values = np.array([[-9, -2, -1, -0.001, 0, 0.5, 1.999, 2, 50, NAN, INF, -INF]], np.float32)
    yield colormap.signed_index, [(values, limit) for limit in (0.0, 1.0, 2.0, NAN)]
    yield colormap.magnitude_index, [(values, limit) for limit in (0.0, 1.0, 2.0, NAN)]
    yield colormap.larger, [(values, values[:, ::-1])]
    yield (
        colormap.robust_limit,
        [(values,), (np.linspace(0, 1, 999, dtype=np.float32),), (values[:, 9:],), (values[:0],)],
    )
    yield colormap.contrast_text, [(table,)]


def test_the_arithmetic_of_pictures_answers_as_approved() -> None:
    lines: list[str] = []
    for function, asked in calls():
        name = getattr(function, "__qualname__", "").replace("<lambda>", "").rpartition(".<locals>.")[2]
        told: dict[str, list[str]] = {}
        for arguments in asked:
            given = [one for one in arguments if not (callable(one) or isinstance(one, np.ndarray | Struct))]
            try:
                found = in_words(function(*arguments))
            except (IndexError, ValueError, KeyError, ZeroDivisionError) as error:
                found = type(error).__name__
            told.setdefault(found, []).append(in_words(given)[1:-1])
        lines += [name, *(f"  {found}  ← {' | '.join(dict.fromkeys(given))}" for found, given in told.items())]
    approve(APPROVED / "answers.txt", lines)
