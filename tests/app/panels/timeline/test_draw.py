"""The ticks of the timeline: one a step, in blocks where there are more steps than pixels, and none is lost."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from app.panels.timeline import FULL_SURPRISAL, StepTicks
from engine.wire.records import StepRecord
from tests.app import samples


def record(step: int, height: float = 0.0, *, forced: bool = False) -> StepRecord:
    found = samples.step_record(step + 1)
    part = replace(found.sequences[0], surprisal=(height * FULL_SURPRISAL,), forced=forced, phase="decode")
    return replace(found, step=step, sequences=(part,))


def take(ticks: StepTicks, records: list[StepRecord]) -> None:
    found = {one.step: one for one in records}
    ticks.follow(list(found), found.get)


def test_each_step_has_its_place_and_the_first_and_last_stand_at_the_ends() -> None:
    ticks = StepTicks()
    take(ticks, [record(0, 0.25), record(1, 0.5, forced=True), record(2, 0.75)])
    heights, forced = ticks.columns(9)
    assert heights.tolist() == [0.25, 0, 0, 0, 0.5, 0, 0, 0, 0.75]
    assert np.flatnonzero(forced).tolist() == [4]


@pytest.mark.parametrize("count", [16, 17, 33, 100, 257])
def test_in_blocks_every_outlier_stays_near_its_place(count: int) -> None:
    """16 blocks for 5 pixels: at most half a block beside where the step itself would stand."""
    tall, mine = count * 3 // 5, count // 4
    records = [record(n, 1.0 if n == tall else 0.125, forced=n == mine) for n in range(count)]
    ticks, at_once = StepTicks(16), StepTicks(16)
    for stop in range(1, count + 1):
        take(ticks, records[:stop])
    take(at_once, records)
    heights, forced = ticks.columns(5)
    assert len(ticks) == count
    assert heights.max() == 1.0
    assert abs(int(heights.argmax()) - tall * 4 / (count - 1)) <= 0.5 + 4 / 16
    assert abs(int(np.flatnonzero(forced)[0]) - mine * 4 / (count - 1)) <= 0.5 + 4 / 16
    assert [each.tolist() for each in at_once.columns(5)] == [heights.tolist(), forced.tolist()]


def test_a_history_that_was_cut_is_read_again_and_a_step_learns_its_surprise() -> None:
    ticks = StepTicks(4)
    take(ticks, [record(n, 1.0) for n in range(9)])
    cut = [record(n, 0.25) for n in range(3)]
    take(ticks, cut)
    assert ticks.columns(3)[0].tolist() == [0.25, 0.25, 0.25]
    cut[1] = record(1, 0.5)
    ticks.put(1, cut[1])
    take(ticks, [*cut, record(3, 0.125)])
    assert ticks.columns(4)[0].tolist() == [0.25, 0.5, 0.25, 0.125]
    assert StepTicks().columns(3)[0].tolist() == [0, 0, 0]
