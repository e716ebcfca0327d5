"""How actions are ranked by what is typed."""

from __future__ import annotations

import pytest

from app.window.palette import rank


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", 0),
        ("step", 0),  # the name begins with it
        ("ba", 1),  # a word of it does
        ("run", 1),  # that of its menu as well
        ("tep", 2),
        ("p b", 2),
        ("sbk", 3 + 5 + 4 + 2),  # letters in order: as many more as are passed over
        ("sb ck", 3 + 5 + 4 + 1),
        ("bb", None),  # there is one, and each letter counts once
        ("kcab", None),
        ("stepper", None),
    ],
)
def test_a_prefix_goes_before_a_word_before_a_part_before_letters(query: str, expected: int | None) -> None:
    assert rank(query, "run: step back") == expected
