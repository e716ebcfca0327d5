"""Steps whose numbers have gaps stand side by side, each under its own number."""

from __future__ import annotations

import pytest

from app.draw.axis import LinearTicks, StepAxis, StepSeries
from engine.wire.records import StepRecord
from tests.app import samples

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


def test_a_series_reads_what_is_new_and_again_what_was_cut() -> None:
    told: list[int] = []

    def row(record: StepRecord) -> tuple[float, ...]:
        told.append(record.step)
        return (record.step, 2.0 * record.step)

    records = samples.story(4)
    series = StepSeries(row, 2)
    assert series.follow(records).tolist() == [[s, 2 * s] for s in range(len(records))]
    assert series.follow(records).shape == (len(records), 2)
    assert told == [record.step for record in records], "once each"
    assert len(series.follow([*records, samples.step_record(len(records))])) == len(records) + 1
    assert series.follow([*records[:2], samples.step_record(2)]).tolist() == [[0, 0], [1, 2], [2, 4]]
    long = [samples.step_record(step) for step in range(600)]
    assert series.follow(long)[:, 0].tolist() == list(range(600))
