"""Where steps that were found are marked: on every pixel that has one, however many there are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import overload

import pytest

from app.panels.timeline import marked_pixels

LEFT, RIGHT = 52.0, 1548.0


class Counted(Sequence[int]):
    """A list that knows how often it was read."""

    def __init__(self, values: list[int]) -> None:
        self.values, self.num_read = values, 0

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        self.num_read += 1
        return self.values[index]


@pytest.mark.parametrize("count", [1, 2, 7, 400, 1497, 1498, 9_000])
@pytest.mark.parametrize("share", [0.01, 0.5, 1.0])
def test_every_pixel_with_a_found_step_is_marked_and_no_other(count: int, share: float) -> None:
    chance = random.Random(count)
    on_path = sorted(chance.sample(range(3 * count), count))  # with gaps, as branches leave them
    steps = [step for step in range(3 * count) if chance.random() < share]
    places = {step: index for index, step in enumerate(on_path)}
    width = (RIGHT - LEFT) / max(1, count - 1)
    expected = {round(LEFT + width * places[step]) if count > 1 else RIGHT for step in steps if step in places}
    found = list(marked_pixels(steps, on_path, LEFT, RIGHT))
    assert found == sorted(set(found))
    assert set(found) == expected


def test_of_a_long_history_no_more_is_read_than_the_line_is_wide() -> None:
    steps = Counted(list(range(200_000)))
    assert len(list(marked_pixels(steps, range(200_000), LEFT, RIGHT))) == RIGHT - LEFT + 1
    assert steps.num_read < 20 * (RIGHT - LEFT), "a search for each pixel, and not a look at every step"
