"""Steps whose numbers have gaps stand side by side, each under its own number."""

from __future__ import annotations

import pytest

from app.draw.axis import LinearTicks
from app.draw.step_axis import StepAxis

PATH = StepAxis((3, 4, 5, 21, 22, 1030))


@pytest.mark.parametrize(
    ("place", "name"), [(3, "3"), (5, "5"), (6, "21"), (8, "1,030"), (8.2, "1,030"), (9, ""), (2, "2")]
)
def test_a_place_is_named_by_its_step(place: float, name: str) -> None:
    assert PATH.name(place) == name


@pytest.mark.parametrize(("step", "place"), [(3, 3), (21, 6), (1030, 8), (6, None), (2, None), (9999, None)])
def test_a_step_has_one_place(step: int, place: int | None) -> None:
    assert PATH.place_of(step) == place


def test_without_a_step_the_axis_counts_from_nothing() -> None:
    assert (StepAxis(()).first, StepAxis(()).name(2), StepAxis(()).place_of(0)) == (0, "2", None)


def test_ticks_carry_the_steps_of_the_path() -> None:
    assert [tick.text for tick in LinearTicks(PATH.name, least=1).ticks(6, 3, 8)] == [
        "3",
        "4",
        "5",
        "21",
        "22",
        "1,030",
    ]
