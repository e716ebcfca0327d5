"""The few numbers of the status line, from records whose times are written by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.models import Models
from app.models.sequence_status import RECENT_CHUNKS, rates, seconds_left
from engine.wire.pictures import RowRequest
from engine.wire.records import StepRecord, Timings
from engine.wire.status import SequenceInfo
from tests.app import samples


def chunk(
    number: int, count: int, *, took_ms: float, at_s: float, seq_id: int = 0, is_last: bool = False
) -> StepRecord:
    """A piece of a prompt: so many tokens, of which the last piece chooses one."""
    record = samples.step_record(0)
    part = replace(
        record.sequences[0], seq_id=seq_id, token_ids=(1,) * count, texts=("a",) * count, surprisal=(None,) * count,
        first_position=10 * number, num_tokens=10 * number + count, num_prompt_tokens=100,
        sampled=5 if is_last else None,
    )  # fmt: skip
    timings = Timings(0, 0.75 * took_ms, 0, 0.25 * took_ms)
    return replace(record, step=number, sequences=(part,), timings=timings, wall_time=at_s)


def waiting(num_tokens: int) -> SequenceInfo:
    return SequenceInfo(0, "prefill", num_tokens, 100, None, None)


def test_the_rest_of_a_prompt_takes_as_long_as_its_last_chunks_did(models: Models) -> None:
    timeline = models.timeline
    assert seconds_left(timeline, waiting(0)) is None
    timeline.append([chunk(0, 10, took_ms=2_000, at_s=50)])
    assert seconds_left(timeline, waiting(10)) == 2.0 / 10 * 90  # of one, what it took itself
    timeline.append([chunk(1, 5, took_ms=1, at_s=51)])
    assert seconds_left(timeline, waiting(15)) == 1.0 / 5 * 85  # of two, by the clock: the tokens of the later one
    for number in range(2, 2 + RECENT_CHUNKS):
        timeline.append([chunk(number, 10, took_ms=1, at_s=60 + 3 * number)])
    assert seconds_left(timeline, waiting(60)) == pytest.approx(9 / 30 * 40)  # of the last four, three follow the first
    assert seconds_left(timeline, waiting(130)) == 0
    assert seconds_left(timeline, replace(waiting(10), seq_id=1)) is None, "nothing of it was read"
    timeline.append([chunk(9, 10, took_ms=1, at_s=99, is_last=True)])
    assert seconds_left(timeline, waiting(90)) is None, "it was read to its end"


def test_chunks_of_another_sequence_end_what_is_known_of_one(models: Models) -> None:
    models.timeline.append([chunk(0, 10, took_ms=8_000, at_s=1), chunk(1, 10, took_ms=1_000, at_s=2, seq_id=1)])
    assert seconds_left(models.timeline, waiting(10)) is None
    models.timeline.append([chunk(2, 10, took_ms=3_000, at_s=9)])
    assert seconds_left(models.timeline, waiting(20)) == 3.0 / 10 * 80


def test_the_time_to_the_first_token_is_that_of_all_chunks_of_the_sequence_alone(models: Models) -> None:
    timeline = models.timeline
    timeline.append([chunk(0, 10, took_ms=5, at_s=0), chunk(1, 10, took_ms=70, at_s=0, seq_id=1)])
    assert rates(timeline, models.pictures, 0).first_token_ms is None
    timeline.append([chunk(2, 10, took_ms=6, at_s=0), chunk(3, 10, took_ms=8, at_s=0, is_last=True)])
    timeline.append([samples.step_record(4)])
    assert rates(timeline, models.pictures, 0).first_token_ms == 5 + 6 + 8
    assert rates(timeline, models.pictures, 1).first_token_ms is None, "it has chosen none"
    timeline.branch(2, 0, 3, 20)
    timeline.append([samples.step_record(5, seq_id=2)])
    assert rates(timeline, models.pictures, 2).first_token_ms is None, "a fork had none of its own"


def test_what_looking_costs_is_of_steps_and_pictures(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    models.timeline.append([chunk(0, 10, took_ms=40, at_s=0), chunk(1, 10, took_ms=60, at_s=9)])
    assert rates(models.timeline, models.pictures, 0).looking_ratio == 0.25
    for at_s, took_ms in ((4.0, 20.0), (9.5, 999.0)):
        monkeypatch.setattr("time.time", lambda at_s=at_s: at_s)
        models.pictures.put(replace(samples.row_picture(RowRequest(0, 10, 1)), took_ms=took_ms))
    assert rates(models.timeline, models.pictures, 0).looking_ratio == (25 + 20) / (100 + 20)
    assert rates(models.timeline, models.pictures, 0).tokens_per_s is None, "a prompt is no decoding"


def test_the_speed_is_that_of_decoding_alone(models: Models) -> None:
    models.timeline.append(samples.story(10))
    decoding_ms = sum(record.timings.total_ms for record in models.timeline.records[1:])
    assert rates(models.timeline, models.pictures, 0).tokens_per_s == pytest.approx(10_000 / decoding_ms)
