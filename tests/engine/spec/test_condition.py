"""Conditions as text: each is read as it was written, and what is none is told where and what may stand there."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InputError
from engine.spec.cache import CacheSpec, cache_named
from engine.spec.condition import (
    MAX_BREAKPOINTS,
    QUANTITIES,
    ROWS,
    SIGNS,
    And,
    Breakpoint,
    Condition,
    ConditionSetting,
    ConditionTerm,
    Not,
    Or,
    Quantity,
    TokenSpan,
    comparisons_of,
    help_lines,
    parsed,
    read_breakpoints,
    spans_of,
    why_never,
    written_breakpoints,
)

NUMBERS = st.floats(-1e12, 1e12, allow_nan=False).map(lambda x: x + 0.0)
PATTERNS = st.sampled_from([r"\bcat\b", 'say "no"', r"\d+$", "a|b", r"\\", "(?i)x{2,3}", 'quoted \\" one'])
SPANS = st.one_of(
    st.tuples(st.integers(0, 999), st.integers(0, 999)).map(lambda ends: TokenSpan(min(ends), max(ends))),
    st.integers(1, 999).map(lambda count: TokenSpan(newest=count)),
)


@st.composite
def comparisons(draw: st.DrawFn) -> ConditionTerm:
    row = draw(st.sampled_from(ROWS))
    if row.kind == "fact":
        return ConditionTerm(row.name)
    sign = draw(st.sampled_from(SIGNS[row.kind]))
    if sign == "~":
        return ConditionTerm(row.name, sign, draw(PATTERNS))
    if row.kind == "token":
        return ConditionTerm(row.name, sign, draw(st.one_of(st.text(max_size=8), st.integers(0, 10**6).map(float))))
    return ConditionTerm(row.name, sign, draw(NUMBERS), draw(SPANS) if row.kind == "attention" else None)


CONDITIONS: st.SearchStrategy[Condition] = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        inner.map(Not),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: And(tuple(parts))),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: Or(tuple(parts))),
    ),
    max_leaves=5,
)


@settings(max_examples=400)
@given(CONDITIONS)
def test_what_is_written_of_a_condition_is_read_as_the_same(condition: Condition) -> None:
    if len(str(condition)) <= 500:
        assert parsed(str(condition)) == condition


@settings(max_examples=400)
@given(st.text(st.sampled_from(list('entropy token>=<!~()"\\0123456789.%-_ andornot cat')), max_size=40))
def test_any_text_is_a_condition_or_is_refused_in_one_sentence(text: str) -> None:
    condition, refusal = read(text)
    if condition is None:
        assert refusal.endswith(".")
        assert "\n" not in refusal
    else:
        assert parsed(str(condition)) == condition


def read(text: str) -> tuple[Condition | None, str]:
    try:
        return parsed(text), ""
    except InputError as error:
        return None, str(error)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_example_of_every_quantity_is_a_condition_about_it(row: Quantity) -> None:
    name, example = row.name, row.example
    assert name in [test.quantity for test in comparisons_of(parsed(example))]
    assert any(line.startswith(example) for line in help_lines())


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("stored > 2 MiB", ConditionTerm("stored", ">", 2.0 * 2**20)),
        ("margin <= 5%", ConditionTerm("margin", "<=", 0.05)),
        ("pages_evicted", ConditionTerm("pages_evicted", ">", 0.0)),
        ("rows_dropped", ConditionTerm("rows_evicted", ">", 0.0)),  # as sessions of older versions have it
        ("NOT differs", Not(ConditionTerm("differs"))),
        ('token = "\\n"', ConditionTerm("token", "=", "\n")),
        ("attention(2-5) ≥ .5", ConditionTerm("attention", ">=", 0.5, TokenSpan(2, 5))),
        ("attention(2 - 5) > 0", ConditionTerm("attention", ">", 0.0, TokenSpan(2, 5))),
        ("attention(7 -9) > 0", ConditionTerm("attention", ">", 0.0, TokenSpan(7, 9))),
        ("attention(7) > 0", ConditionTerm("attention", ">", 0.0, TokenSpan(7, 7))),
        ("attention(last 16)<1", ConditionTerm("attention", "<", 1.0, TokenSpan(newest=16))),
        (
            "step = 1 or step = 2 and tokens > 3",
            Or(
                (
                    ConditionTerm("step", "=", 1.0),
                    And((ConditionTerm("step", "=", 2.0), ConditionTerm("tokens", ">", 3.0))),
                )
            ),
        ),
        (
            "not (step = 1 or step == 2)",
            Not(Or((ConditionTerm("step", "=", 1.0), ConditionTerm("step", "=", 2.0)))),
        ),
    ],
)
def test_how_conditions_are_read(text: str, condition: Condition) -> None:
    assert parsed(text) == condition


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "The condition is empty"),
        ("entropy", "At character 8 something is missing: compare entropy with"),
        ("entropy >", "At character 10 something is missing: write a number, as in entropy > 2."),
        ("entrpy > 2", "At character 1 “entrpy” cannot stand: write entropy."),
        ("entropy > 2 x", "At character 13 “x” cannot stand: write and, or, or nothing more."),
        ("(entropy > 2", "At character 13 something is missing: close the parenthesis with )."),
        ('token = "cat', 'At character 9 the text has no end: close it with ".'),
        ("token = 1.5", "At character 9 a token id is a whole number: write 0 or more."),
        ("step = 1e999", "At character 8 the number is too large: write a smaller one."),
        ('text ~ "("', "At character 6: “(” is no regular expression"),
        ("attention > 0", "At character 11 “>” cannot stand: write positions between parentheses"),
        ("attention(x) > 0", "At character 11 “x” cannot stand: write positions from 0 up"),
        ("attention(2-x) > 0", "At character 13 “x” cannot stand: write positions from 0 up"),
        ("attention(2.5) > 0", "At character 11 “2.5” cannot stand: write positions from 0 up"),
        ("attention(last) > 0", "At character 15 “)” cannot stand: write positions from 0 up"),
        ("attention(2 > 0", "At character 13 “>” cannot stand: close the parenthesis with )."),
        ("text ~ 5", "At character 8 “5” cannot stand: write a text between quotes"),
        ("attention(5-2) > 0", "At character 11 positions 5-2 are none"),
        ("not " * 30 + "differs", "nested too deep"),
        ("entropy > 2 and " * 60 + "differs", "too long: at most 500 are read."),
        ('text ~ "(?:a{1000}){1000}"', "repeats more than 1,000 times"),
    ],
)
def test_where_a_text_is_no_condition_and_what_may_stand_there(text: str, words: str) -> None:
    with pytest.raises(InputError) as refused:
        parsed(text)
    assert words in str(refused.value)


def test_a_stop_is_refused_where_its_text_is_none() -> None:
    assert Breakpoint(1, "entropy > 2").condition == ConditionTerm("entropy", ">", 2.0)
    with pytest.raises(InputError, match="write entropy"):
        Breakpoint(1, "entrpy > 2")


def test_the_spans_of_a_condition_are_told_once() -> None:
    assert spans_of(parsed("attention(3) > 0.5 or not (peak_attention(3) > 0.9 and attention(last 2) < 1)")) == (
        TokenSpan(3, 3),
        TokenSpan(newest=2),
    )


GROWING, PAGED, H2O = CacheSpec(), cache_named("paged"), cache_named("h2o")


@pytest.mark.parametrize(
    ("text", "setting", "words"),
    [
        ("pages_allocated", ConditionSetting(GROWING), "Growing has no pages: take a paged cache."),
        ("pages_allocated", ConditionSetting(PAGED), ""),
        ("not pages_allocated", ConditionSetting(GROWING), ""),
        ("pages_allocated or entropy > 2", ConditionSetting(GROWING), ""),
        ("pages_allocated and entropy > 2", ConditionSetting(GROWING), "Growing has no pages"),
        ("pages_moved", ConditionSetting(PAGED), "moves no pages: take the offloaded cache."),
        ("rows_evicted", ConditionSetting(PAGED), "keeps all rows"),
        ("rows_evicted", ConditionSetting(H2O), ""),
        ("preempted >= 0", ConditionSetting(GROWING), ""),
        (
            "attention(0) > 50%",
            ConditionSetting(GROWING, captures_attention=False),
            "no attention of this model is captured",
        ),
        ("not attention(0) > 50%", ConditionSetting(GROWING, captures_attention=False), "no attention of this model"),
        ("attention(0) > 1", ConditionSetting(GROWING), "attention is from 0 to 1, or to 100 %"),
        ("differs", ConditionSetting(GROWING, is_compared=False), "no comparison runs: start one."),
        ("probability > 2", ConditionSetting(GROWING), "probability is from 0 to 1"),
        ("probability >= 1", ConditionSetting(GROWING), ""),
        ("tokens > 512", ConditionSetting(GROWING, max_tokens=512), "a sequence has 0 to 512 tokens here"),
        ("tokens >= 512", ConditionSetting(GROWING, max_tokens=512), ""),
        ("step < 0", ConditionSetting(GROWING), "step is from 0 up"),
        ("not tokens >= 0", ConditionSetting(GROWING), "It contradicts itself"),
    ],
)
def test_what_can_never_hold_and_why(text: str, setting: ConditionSetting, words: str) -> None:
    why = why_never(parsed(text), setting)
    assert words in why if words else why == ""
    assert not why or (why.endswith(".") and why.count(". ") == 0)


def test_every_need_of_a_quantity_is_told() -> None:
    """Whoever adds a quantity that needs something says what."""
    nothing = ConditionSetting(GROWING, captures_attention=False, is_compared=False)
    for row in QUANTITIES.values():
        if row.need:
            assert why_never(parsed(row.example), nothing), row.name


def test_the_beginning_of_several_names_offers_all_of_them() -> None:
    with pytest.raises(InputError, match="write pages_allocated or pages_shared or pages_evicted or pages_moved"):
        parsed("page allocated")


def test_stops_are_read_as_they_were_written_and_others_are_given_back() -> None:
    stops = (Breakpoint(1, "step > 2"), Breakpoint(2, "tokens > 5", is_enabled=False))
    assert written_breakpoints(stops) == ("step > 2", "# tokens > 5")
    found, others = read_breakpoints(("step > 2", "nonsense", "# tokens > 5", "# none"))
    assert (found, others) == (stops, ("nonsense", "# none"))
    assert [len(each) for each in read_breakpoints(("step > 2",) * (MAX_BREAKPOINTS + 2))] == [MAX_BREAKPOINTS, 0]
