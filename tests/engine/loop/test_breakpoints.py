"""A run halts after the step at which a condition holds, and says which; the status tells which breakpoints it has."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.spec.cache import CacheSpec, cache_named
from engine.spec.condition import MAX_BREAKPOINTS, Breakpoint, TokenSpan
from engine.wire.breakpoints import AttentionMeasured, AttentionPlace, BreakpointHit, MeasureAttention, SetBreakpoints
from engine.wire.commands import Force, GoTo, Run, SetCache, StartComparison, Step
from engine.wire.comparison import ComparedStep, OtherRun
from engine.wire.events import Failed
from engine.wire.records import StepRecord
from tests.engine.loop.driver import Driver, prompt

LIMIT = 40


def breakpoints(*texts: str) -> SetBreakpoints:
    return SetBreakpoints(tuple(Breakpoint(number, text) for number, text in enumerate(texts)))


def last_step(driver: Driver) -> int:
    return driver.of(StepRecord)[-1].step


@pytest.mark.parametrize("mode", [CacheSpec("growing"), CacheSpec("paged", page_size=4), cache_named("h2o")])
def test_a_run_halts_at_exactly_that_step_and_goes_on_from_there(driver: Driver, mode: CacheSpec) -> None:
    driver.send(SetCache(mode), breakpoints("tokens = 12", "tokens = 15"), prompt(6), Run(LIMIT))
    status = driver.rest()
    (hit,) = driver.of(BreakpointHit)
    assert (hit.breakpoint_id, hit.condition, hit.value, hit.seq_id) == (0, "tokens = 12", "tokens 12", 0)
    assert last_step(driver) == hit.step == 6
    assert status.halted_by == hit
    driver.send(Run(LIMIT))
    status = driver.rest()
    assert last_step(driver) == 9
    assert [hit.breakpoint_id for hit in driver.of(BreakpointHit)] == [0, 1]
    driver.send(Run(2))
    assert driver.rest().halted_by is None
    assert last_step(driver) == 11
    driver.send(breakpoints("tokens = 18"), Run(LIMIT))
    assert driver.rest().halted_by is not None
    driver.send(GoTo(10))
    assert driver.rest().halted_by is None, "the live step is another one"


def test_a_run_halts_in_a_prefill_and_at_forced_tokens(driver: Driver) -> None:
    driver.send(breakpoints("fed = 5"), prompt(6), Step())
    driver.rest()
    driver.send(Force(0, (9, 8, 5, 7)), Run(LIMIT))
    driver.rest()
    assert driver.of(StepRecord)[-1].sequences[0].token_ids == (5,)
    assert last_step(driver) == 3
    driver.send(breakpoints("tokens > 4"), prompt(9), Run(LIMIT))
    driver.rest()
    assert [record.phase for record in driver.of(StepRecord)[-1:]] == ["prefill"]


def test_several_steps_end_where_a_stop_holds(driver: Driver) -> None:
    driver.send(breakpoints("step = 3"), prompt(6), Step(10))
    driver.rest()
    assert last_step(driver) == 3


def test_a_stop_that_is_off_halts_nothing(driver: Driver) -> None:
    driver.send(SetBreakpoints((Breakpoint(1, "step = 3", is_enabled=False),)), prompt(6), Run(8))
    driver.rest()
    assert not driver.of(BreakpointHit)
    assert last_step(driver) == 7


def test_a_run_goes_until_its_own_condition_and_forgets_it(driver: Driver) -> None:
    driver.send(prompt(6), Run(until="tokens >= 10 and sequence = 0"))
    status = driver.rest()
    (hit,) = driver.of(BreakpointHit)
    assert (hit.breakpoint_id, hit.step) == (None, 4)
    assert status.halted_by == hit
    driver.send(Run(5))
    driver.rest()
    assert len(driver.of(BreakpointHit)) == 1
    assert last_step(driver) == 9


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (Run(until="entropy >"), "At character 10 something is missing: write a number"),
        (Run(until="pages_allocated"), "has no pages: take a paged cache."),
        (Run(until="tokens > 128"), "0 to 128 tokens"),
        (
            SetBreakpoints(tuple(Breakpoint(number, "differs") for number in range(MAX_BREAKPOINTS + 1))),
            "65 breakpoints are too many",
        ),
        (SetBreakpoints((Breakpoint(1, "differs"), Breakpoint(1, "nonfinite"))), "Two breakpoints have the same id"),
        (
            MeasureAttention(tuple(AttentionPlace(0, 0, 6) for _ in range(4097)), (TokenSpan(),)),
            "at 4,096 places at most",
        ),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    driver: Driver, command: Run | SetBreakpoints | MeasureAttention, words: str
) -> None:
    driver.send(prompt(6), breakpoints("step = 99"), Step())
    before = driver.rest()
    driver.send(command)
    driver.rest()
    assert words in driver.of(Failed)[-1].message
    assert driver.status == before
    assert last_step(driver) == 0


def test_a_stop_that_can_never_hold_says_so_in_this_mode_alone(driver: Driver) -> None:
    driver.send(prompt(6), breakpoints("pages_allocated", "entropy > 2"))
    assert [bool(state.problem) for state in driver.rest().breakpoints] == [True, False]
    assert "has no pages" in driver.status.breakpoints[0].problem
    driver.send(SetCache(CacheSpec("paged", page_size=4)))
    assert [state.problem for state in driver.rest().breakpoints] == ["", ""]


def test_going_back_does_not_forget_the_norms_of_earlier_rows(driver: Driver) -> None:
    driver.send(prompt(6), breakpoints("norm > 0"), Step())
    driver.rest()
    driver.send(Run(LIMIT))
    driver.rest()
    halted = last_step(driver)
    assert halted == 2  # six tokens and two more are eight rows
    driver.send(Run(3))
    driver.rest()
    driver.send(GoTo(halted))
    driver.rest()
    driver.forget()
    driver.send(Step())
    driver.rest()
    assert driver.of(BreakpointHit)


def test_past_attention_is_answered_where_it_is_kept(driver: Driver) -> None:
    driver.send(prompt(6), Step(3))
    driver.rest()
    places = (AttentionPlace(0, 0, 6), AttentionPlace(2, 0, 8), AttentionPlace(77, 0, 8))
    driver.send(MeasureAttention(places, (TokenSpan(newest=99), TokenSpan(7, 7))))
    driver.rest()
    answer = driver.of(AttentionMeasured)[-1]
    found = {(mass.step, mass.span): mass.mean for mass in answer.masses}
    assert set(found) == {(0, TokenSpan(newest=99)), (2, TokenSpan(newest=99)), (2, TokenSpan(7, 7))}
    assert found[0, TokenSpan(newest=99)] == pytest.approx(1.0, abs=1e-5)
    assert 0 < found[2, TokenSpan(7, 7)] < 1


def test_stops_stay_over_a_new_prompt(driver: Driver, tmp_path: Path) -> None:
    driver.send(breakpoints("tokens = 8"), prompt(6), Run(LIMIT))
    driver.rest()
    driver.send(prompt(7), Run(LIMIT))
    status = driver.rest()
    assert last_step(driver) == 1
    assert [state.breakpoint.text for state in status.breakpoints] == ["tokens = 8"]


def test_a_run_halts_where_the_compared_one_puts_another_token_first(driver: Driver) -> None:
    other = cache_named("streamingllm")
    other = replace(other, retention=replace(other.retention, sinks=1, window=3))
    driver.send(prompt(8), Step())
    driver.rest()
    driver.send(breakpoints("differs"))
    assert "no comparison runs: start one." in driver.rest().breakpoints[0].problem
    driver.send(StartComparison(0, OtherRun(other)), Run(LIMIT))
    status = driver.rest()
    assert status.breakpoints[0].problem == ""
    told = {step.step: step.top1_agrees for step in driver.of(ComparedStep)}
    (hit,) = driver.of(BreakpointHit)
    assert [step for step, agrees in told.items() if agrees is False] == [hit.step]
    assert last_step(driver) == hit.step
