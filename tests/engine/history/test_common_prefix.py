"""What two token lists, or two texts, begin with in common."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.history.state import num_common

TOKENS = st.lists(st.integers(0, 9), max_size=6)


@given(TOKENS, TOKENS, TOKENS)
def test_it_ends_at_the_first_that_differs(common: list[int], one: list[int], other: list[int]) -> None:
    assert num_common([*common, 10, *one], [*common, 11, *other]) == len(common)
    assert num_common(common, [*common, *one]) == num_common([*common, *one], common) == len(common)


def test_a_tuple_has_what_a_list_has_and_texts_have_characters() -> None:
    assert num_common((1, 2), [1, 2]) == 2
    assert num_common("a dog", "a day") == 3
