"""How many steps a command brings, and at which pace."""

from __future__ import annotations

import pytest
from msgspec import structs

from engine.loop import inbox
from engine.loop.inbox import StepsToDo
from engine.session.chunks import PrefillPlan
from engine.spec.sampling import Prompt
from engine.wire.commands import Pause, Run, SetPace, Step, SubmitPrompt
from engine.wire.events import Failed, Submitted
from engine.wire.records import StepRecord
from tests.engine.loop.driver import Driver, prompt
from tests.engine.tiny import prompt_ids


def test_a_paced_run_leaves_its_pace_to_nobody(driver: Driver) -> None:
    """A new prompt asks for three steps: they come at once, not one in ten thousand seconds."""
    driver.send(SetPace(1e-4, None), prompt(6), Run())
    driver.wait_for(StepRecord)
    driver.send(structs.replace(prompt(7), num_steps=3))
    driver.wait_for(StepRecord, 4)
    assert not driver.rest().running


def test_a_prompt_that_asks_for_no_step_ends_an_endless_run(driver: Driver) -> None:
    driver.send(SetPace(1e-4, None), prompt(6), Run())
    driver.wait_for(StepRecord)
    driver.send(prompt(7))
    driver.wait_for(Submitted, 2)
    assert not driver.rest().running


def test_a_prompt_that_asks_for_a_run_is_answered_until_it_is_paused(driver: Driver) -> None:
    """Beside three steps that are still wanted, and where it is refused nothing runs."""
    refused = SubmitPrompt(Prompt(token_ids=(9999,)), num_steps=None)
    driver.send(refused)
    driver.wait_for(Failed)
    assert not driver.rest().running
    endless = SubmitPrompt(Prompt(token_ids=prompt_ids(5)), alone=False, num_steps=None)
    driver.send(prompt(6), Step(3), endless)
    driver.wait_for(StepRecord, 9)
    driver.send(Pause())
    assert not driver.rest().running


def test_quick_keys_are_not_lost(driver: Driver) -> None:
    """Three steps asked for before the first is done are three steps."""
    driver.send(prompt(6), Step(), Step(), Step())
    driver.wait_for(StepRecord, 3)
    driver.rest()
    assert len(driver.of(StepRecord)) == 3


def test_a_long_prefill_is_one_unit_of_many_chunks(slow: Driver) -> None:
    slow.session.scheduler.plan = PrefillPlan(256)
    slow.send(prompt(400), Step())
    slow.wait(lambda: [r for r in slow.of(StepRecord) if r.sequences[0].num_tokens == 400])
    assert not slow.rest().running
    parts = [r.sequences[0] for r in slow.of(StepRecord)]
    assert len(parts) > 1
    assert [part.first_position for part in parts[1:]] == [part.num_tokens for part in parts[:-1]]
    assert [part.sampled is not None for part in parts] == [False] * (len(parts) - 1) + [True]


def test_running_to_a_number_of_steps_and_pausing(driver: Driver) -> None:
    driver.send(prompt(6, temperature=2.0, seed=1), Run(5))
    driver.wait_for(StepRecord, 5)
    assert driver.rest().step == 4
    driver.send(Run())
    driver.wait_for(StepRecord, 8)
    driver.send(Pause())
    driver.rest()
    count = len(driver.of(StepRecord))
    driver.rest()
    assert len(driver.of(StepRecord)) == count


def test_nothing_to_do_is_said_and_does_not_wait_in_ambush(driver: Driver) -> None:
    for command in (Step(), Run(), Step(0), Step(-1)):
        driver.forget()
        driver.send(command)
        assert driver.wait_for(Failed).message
    driver.forget()
    driver.send(prompt(6))
    driver.rest()
    assert driver.of(StepRecord) == [], "a step refused before must not run now"


def test_two_quick_prompts_are_both_read_and_nothing_more(driver: Driver) -> None:
    driver.send(prompt(6), Step())
    driver.wait_for(StepRecord)
    driver.rest()
    driver.forget()
    for seed in (1, 2):
        ids = Prompt(token_ids=prompt_ids(5, seed))
        driver.send(SubmitPrompt(ids, alone=False, num_steps=1))
    driver.wait_for(StepRecord, 2)
    status = driver.rest()
    assert [(r.phase, r.sequences[0].seq_id) for r in driver.of(StepRecord)] == [("prefill", 1), ("prefill", 2)]
    assert [info.num_tokens for info in status.sequences] == [6, 5, 5]
    assert [(s.seq_id, len(s.token_ids)) for s in driver.of(Submitted)] == [(1, 5), (2, 5)]


def test_a_refused_prompt_asks_for_no_step(driver: Driver) -> None:
    driver.send(prompt(6), Step())
    driver.wait_for(StepRecord)
    driver.forget()
    driver.send(SubmitPrompt(Prompt(token_ids=(9999,)), alone=False, num_steps=1))
    driver.wait_for(Failed)
    driver.rest()
    assert driver.of(StepRecord) == []


def test_a_pace_is_that_of_a_run_and_of_no_single_steps() -> None:
    steps = StepsToDo()
    steps.step(Step(3))
    steps.set_pace(SetPace(1e-4, None))
    steps.done(is_unit=True)
    assert (steps.count, steps.wait_s) == (2, 0.0)
    steps.run(Run())
    assert (steps.count, steps.wait_s) == (None, 0.0)
    steps.done(is_unit=True)
    assert steps.wait_s > 9000
    steps.set_pace(SetPace(None, None))  # of the run that goes on
    assert steps.wait_s == 0.0


def test_after_a_slow_step_a_paced_run_does_not_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What took longer than the pace allows puts off the steps after it; it is not made up for."""
    now = [100.0]
    monkeypatch.setattr(inbox.time, "monotonic", lambda: now[0])
    steps = StepsToDo()
    steps.set_pace(SetPace(2.0, None))
    steps.run(Run())
    rests = []
    for took in (0.1, 0.1, 5.0, 0.1):
        now[0] += took
        steps.done(is_unit=True)
        rests.append(round(steps.wait_s, 3))
        now[0] += steps.wait_s
    assert rests == [0.4, 0.4, 0.0, 0.4]
