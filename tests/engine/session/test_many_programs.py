"""Short programs on the history tree, in every mode, each against a straightforward replay: see
`histories`. The model is the tiniest, so that what is run is the engine."""

from __future__ import annotations

import pytest

from tests.effort import effort
from tests.engine.session.histories import MODES, TINIEST, operations_of, play, shortest

PROGRAMS = effort(145, 1500)  # in each mode: two thousand in all
OPERATIONS = 6


@pytest.mark.parametrize("mode", MODES)
def test_a_replay_finds_no_difference(mode: str) -> None:
    number, compared, done = list(MODES).index(mode), 0, set[str]()
    for seed in range(number * PROGRAMS, (number + 1) * PROGRAMS):
        operations = operations_of(seed, OPERATIONS)
        try:
            program = play((TINIEST, mode), operations)
        except Exception as error:
            few = shortest((TINIEST, mode), operations)
            raise AssertionError(f"play(({TINIEST!r}, {mode!r}), {few}) fails: {error}") from error
        compared += program.num_compared
        done.update(program.done)
    assert compared > 1.1 * PROGRAMS, "by a replay each, and where one has gone to"
    assert done >= {"step", "go", "fork", "remove", "edit", "undo", "redo", "force", "mode", "sample"}
