"""Stop strings as a person types them."""

from __future__ import annotations

import pytest

from engine.errors import InputError
from engine.spec.sampling import stop_strings


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("", ()),
        ("  ", ()),
        ("END", ("END",)),
        (r"a\n\tb", ("a\n\tb",)),
        ('"END"', ("END",)),
        ('"END" "a, b"', ("END", "a, b")),
        (r'"\n", "say \"x\""', ("\n", 'say "x"')),
    ],
)
def test_one_as_it_is_or_several_in_quotes(typed: str, found: tuple[str, ...]) -> None:
    assert stop_strings(typed) == found


@pytest.mark.parametrize(("typed", "outside"), [('"END" or', "or"), ('x "END"', "x"), ('"END', '"END')])
def test_what_stands_outside_quotes_is_named(typed: str, outside: str) -> None:
    with pytest.raises(InputError, match=f"“{outside}” stands outside quotes"):
        stop_strings(typed)
