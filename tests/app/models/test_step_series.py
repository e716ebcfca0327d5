"""Numbers of every step: each record is read once, and again after going back."""

from __future__ import annotations

from app.models.step_series import StepSeries
from engine.wire.records import StepRecord
from tests.app import samples


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
