"""Steps that are given up or fail after a sequence was preempted, or right after an edit."""

from __future__ import annotations

import pytest

from engine.session.edits import make_edit
from engine.session.replay import Replay
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.edit import ReplaceTokens, Rows, Zero
from engine.spec.sampling import Prompt
from engine.wire.status import Chosen, PhaseReached
from tests.engine.session.histories import Stood, difference, stands
from tests.engine.tiny import model_of, prompt_ids

POOL = CacheSpec("paged", page_size=4, num_pages=10)


class GivenUpError(Exception):
    """Raised to give a step up."""


def at_the_preemption(session: Session) -> dict[int, dict[int, Stood]]:
    """Step until a sequence is preempted and give that step up; return the state after each step before."""
    stood: dict[int, dict[int, Stood]] = {}

    def reached(event: PhaseReached) -> None:
        if session.scheduler.preempted:
            raise GivenUpError

    for _ in range(30):
        try:
            record = session.step(reached=reached)
        except GivenUpError:
            return stood
        stood[record.step] = stands(session)
    raise AssertionError("the pool was large enough after all")


def crowded() -> Session:
    session = Session(model_of("llama"), POOL, prefill_chunk=64)
    for number in range(2):
        session.force(session.submit(Prompt(token_ids=prompt_ids(11, seed=number))), prompt_ids(60, seed=5 + number))
    return session


def assert_replays(session: Session) -> None:
    again = Session(session.model, POOL, prefill_chunk=64)
    replay = Replay(again, tuple(entry.node for entry in session.history.tree))
    for _ in replay.steps():
        pass
    assert replay.is_exact, replay.why_not_exact
    assert difference(stands(session), stands(again)) == ""


def test_nobody_was_preempted_in_a_step_that_was_given_up() -> None:
    session = crowded()
    last = max(stood := at_the_preemption(session))
    assert [live.sequence.num_tokens for live in session.live] == [16, 16]
    assert [live.sequence.num_preemptions for live in session.live] == [0, 0]
    for live in session.live:
        session.refresh(live)
    assert difference(stood[last], stands(session)) == ""
    record = session.step()
    assert record.preempted == (1,)
    assert_replays(session)


def test_an_edit_behind_such_a_step_leaves_the_moment_before_as_it_was() -> None:
    session = crowded()
    last = max(stood := at_the_preemption(session))
    make_edit(session, Zero(0, Rows(1, 3)))
    session.go_to(last)
    assert difference(stood[last], stands(session)) == ""


def test_another_mode_behind_such_a_step_leaves_the_moment_before_as_it_was() -> None:
    session = crowded()
    last = max(stood := at_the_preemption(session))
    session.set_cache(CacheSpec())
    session.go_to(last)
    assert difference(stood[last], stands(session)) == ""


def test_what_is_done_behind_such_a_step_is_told_as_it_was() -> None:
    session = crowded()
    at_the_preemption(session)
    session.go_to(4)
    assert session.step().preempted == ()
    assert_replays(session)
    other = crowded()
    at_the_preemption(other)
    other.remove(1)
    assert other.step().preempted == ()
    assert_replays(other)


@pytest.mark.parametrize("mode", ["growing", "paged", "static", "none"])
def test_a_text_that_became_shorter_outlives_a_step_that_is_given_up(mode: str) -> None:
    session = Session(model_of("llama"), PRESETS[mode].spec)
    session.force(session.submit(Prompt(token_ids=prompt_ids(30))), prompt_ids(60, seed=3))
    for _ in range(6):
        session.step()
    if mode != "none":
        make_edit(session, Zero(0, Rows(0, 2)))
    make_edit(session, ReplaceTokens(0, 10, (7,), "re-prefill", 8))
    session.step()
    before = stands(session)

    def reached(event: PhaseReached) -> None:
        if isinstance(event.phase, Chosen):
            raise GivenUpError

    with pytest.raises(GivenUpError):
        session.step(reached=reached)
    session.refresh(session.live.get(0))
    assert difference(before, stands(session)) == ""
    assert bool(session.cache_of(0).by_hand)
    session.step()
