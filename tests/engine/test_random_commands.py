"""The short form of `tests.benchmarks.random_commands`: nothing that may be asked of the engine surprises it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.wire.commands import COMMANDS, Shutdown
from tests.benchmarks.chance import Chance
from tests.benchmarks.random_commands import play
from tests.effort import effort


@pytest.mark.parametrize("seed", effort([34], [*range(30, 60)]))
def test_random_commands_are_done_or_refused_in_a_sentence(seed: int) -> None:
    story = play(seed, 220)
    assert story.commands.total() >= 220
    assert 0 < story.refusals.total() < story.commands.total()
    assert story.commands.keys() & story.refusals.keys(), "bad arguments are refused"


def test_every_command_that_there_is_is_drawn() -> None:
    chance = Chance(random.Random(3), {"llama": "shape:/no/such/config.json"}, Path())
    drawn = {type(chance.command()) for _ in range(6000)}
    assert drawn == {*COMMANDS} - {Shutdown}
