"""Random programs on the history tree find no difference from what was, nor from a fresh session: see `histories`."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.engine.session.histories import OPERATIONS, PLACES, Program, run


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
