"""Random programs on the history tree: every moment stands as it stood, and neither a fresh session nor a plain replay
finds a difference: see `histories`."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.engine.session.histories import (
    MODES,
    OPERATIONS,
    PLACES,
    TINIEST,
    Program,
    operations_of,
    play,
    run,
    shortest,
)

# of the tiniest model, so that what is run is the engine
SHORT_PROGRAMS = effort(30, 1500)  # programs in each mode: hundreds in all
SHORT_OPERATIONS = 6


@settings(max_examples=effort(25, 500), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    place=st.sampled_from(PLACES),
    seed=st.integers(0, 1 << 32),
    operations=st.lists(st.sampled_from(OPERATIONS), max_size=16),
)
def test_every_moment_of_every_branch_stands_as_it_stood(
    place: tuple[str, str], seed: int, operations: list[str]
) -> None:
    program = Program(*place, random.Random(seed))
    for what in operations:
        program.do(what)
    program.compare_with_a_fresh_session()


@pytest.mark.parametrize("place", PLACES, ids="-".join)
def test_long_programs_in_every_mode(place: tuple[str, str]) -> None:
    assert run(PLACES.index(place) + 1, 24, place).num_compared >= 2


@pytest.mark.parametrize("mode", MODES)
def test_a_replay_finds_no_difference(mode: str) -> None:
    number, compared, done = list(MODES).index(mode), 0, set[str]()
    for seed in range(number * SHORT_PROGRAMS, (number + 1) * SHORT_PROGRAMS):
        operations = operations_of(seed, SHORT_OPERATIONS)
        try:
            program = play((TINIEST, mode), operations)
        except Exception as error:
            few = shortest((TINIEST, mode), operations)
            raise AssertionError(f"play(({TINIEST!r}, {mode!r}), {few}) fails: {error}") from error
        compared += program.num_compared
        done.update(program.done)
    assert compared > 1.1 * SHORT_PROGRAMS, "each moment by a replay, and those that the program went to"
    assert done >= {"step", "go", "fork", "remove", "edit", "undo", "redo", "force", "mode", "sample"}
