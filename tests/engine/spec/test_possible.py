"""What may come out of a condition, against all that does when every part takes every value it can."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.spec.cache import CacheSpec
from engine.spec.condition import And, Condition, ConditionSetting, ConditionTerm, Not, Or, Truth, why_never

SETTING = ConditionSetting(CacheSpec(), is_compared=False, max_tokens=4)
SIGNS = {"<": float.__lt__, "<=": float.__le__, ">": float.__gt__, ">=": float.__ge__, "=": float.__eq__,
         "!=": float.__ne__}  # fmt: skip


@pytest.mark.parametrize("sign", SIGNS)
def test_a_comparison_may_give_what_it_gives_of_some_number_in_its_range(sign: str) -> None:
    """Of counts of tokens every whole number is tried, of a probability hundredths, of pages none: it has none."""
    for value in (-1.0, 0.0, 0.5, 1.0, 2.0, 2.5, 4.0, 4.5, 5.0):
        for quantity, numbers in (
            ("tokens", range(5)), ("probability", [n / 100 for n in range(101)]), ("pages_allocated", [0]),
        ):  # fmt: skip
            expected = {SIGNS[sign](float(n), value) for n in numbers}
            assert outcomes(ConditionTerm(quantity, sign, value)) == expected, (quantity, value)  # type: ignore[arg-type]


def outcomes(condition: Condition) -> set[Truth]:
    """What may come out of a condition, or of it turned round."""
    return {truth for truth, one in ((True, condition), (False, Not(condition))) if not why_never(one, SETTING)}


# that may hold or not, that always or never do, that are unknown always or may be
TERMS = [
    ConditionTerm("step", ">", 3.0),
    ConditionTerm("step", ">=", 0.0),
    ConditionTerm("tokens", ">", 4.0),
    ConditionTerm("differs"),
    ConditionTerm("probability", ">", 0.5),
    ConditionTerm("pages_allocated", ">", 0.0),
    ConditionTerm("probability", ">", 2.0),
]
conditions = st.recursive(
    st.sampled_from(TERMS),
    lambda parts: st.one_of(
        st.builds(Not, parts),
        st.builds(And, st.lists(parts, min_size=2, max_size=3).map(tuple)),
        st.builds(Or, st.lists(parts, min_size=2, max_size=3).map(tuple)),
    ),
    max_leaves=5,
)


def whole(condition: Condition, values: list[Truth]) -> Truth:
    """What comes out where its comparisons, from left to right, give these; they are taken from the list."""
    match condition:
        case ConditionTerm():
            return values.pop(0)
        case Not(part):
            found = whole(part, values)
            return None if found is None else not found
        case And(parts):
            of_parts = [whole(part, values) for part in parts]
            return False if False in of_parts else None if None in of_parts else True
        case Or(parts):
            of_parts = [whole(part, values) for part in parts]
            return True if True in of_parts else None if None in of_parts else False


def terms_of(condition: Condition) -> list[ConditionTerm]:
    match condition:
        case ConditionTerm():
            return [condition]
        case Not(part):
            return terms_of(part)
        case And(parts) | Or(parts):
            return [term for part in parts for term in terms_of(part)]


@pytest.mark.parametrize("value", [-3, 3.5, 5000])
def test_a_number_of_tokens_that_no_sequence_has_is_refused_with_those_that_one_may_have(value: float) -> None:
    words = why_never(ConditionTerm("tokens", "=", value), SETTING)
    assert "0 to 4 tokens" in words
    assert "fewer" not in words


@given(conditions)
def test_parts_together_may_give_what_they_give_of_some_values_of_each(condition: Condition) -> None:
    may = [outcomes(term) or {None} for term in terms_of(condition)]
    assert outcomes(condition) == {whole(condition, list(values)) for values in product(*may)} - {None}
