"""What waits for a slow window: the newest of every picture that is sent whole, and everything else."""

from __future__ import annotations

import threading
from typing import Any

from msgspec.structs import replace

from engine.client.outbox import MAX_PICTURES, Outbox
from engine.wire.events import Event, Failed, StateChanged
from engine.wire.pictures import OutliersRequest, RowRequest, Unchanged
from tests.app import samples


def outliers(number: int, step: int) -> Any:
    return replace(samples.outliers_picture(OutliersRequest(0, 9 + step, step)), reply_to=number)


def test_only_the_newest_whole_slice_of_a_picture_waits() -> None:
    """Its updates before go with the older one; those of other pictures, and what no id tells apart, stay."""
    other = Unchanged(RowRequest(0, 12, 3), reply_to=1)
    unnamed = [outliers(0, step) for step in range(2)]
    kept: list[Event] = [outliers(2, 0), Failed("No room."), other, *unnamed]
    newest, update = outliers(1, 7), Unchanged(OutliersRequest(0, 17, 8), reply_to=1)
    outbox = Outbox()
    for step in range(5):
        outbox.put(outliers(1, step))
        outbox.put(Unchanged(OutliersRequest(0, 10 + step, step), reply_to=1))
        outbox.put(kept[step])
    outbox.put(newest)
    outbox.put(update)
    waiting = outbox.take_all()
    assert [id(event) for event in waiting] == [id(event) for event in (*kept, newest, update)]
    assert outbox.take_all() == []


def test_they_come_in_order_and_nothing_comes_in_time() -> None:
    outbox = Outbox()
    assert outbox.take(0.0) == []
    outbox.put(Failed("two"))
    outbox.put_first(Failed("one"))
    assert outbox.take(60.0) == [Failed("one"), Failed("two")]
    assert outbox.take(0.0) == []
    threading.Timer(0.05, outbox.put, [Failed("late")]).start()
    assert outbox.take(60.0) == [Failed("late")]


def test_the_record_of_a_step_is_taken_with_what_follows_it() -> None:
    outbox, record, status = Outbox(), samples.step_record(1), StateChanged(samples.status(1, num_tokens=5))
    outbox.put(record)
    threading.Timer(0.05, outbox.put, [status]).start()
    assert outbox.take(60.0) == [record, status]
    outbox.put(record)
    assert outbox.take(0.0) == [record], "but not for ever"


def test_pictures_of_a_step_are_taken_with_its_status_and_others_at_once() -> None:
    outbox, picture = Outbox(), Unchanged(RowRequest(0, 12, 3), reply_to=1)
    record, status = samples.step_record(1), StateChanged(samples.status(1, num_tokens=5))
    for event in (record, picture, picture):
        outbox.put(event)
    threading.Timer(0.05, outbox.put, [status]).start()
    assert outbox.take(60.0) == [record, picture, picture, status]
    for ended_by in (Failed("The step failed."), status):
        outbox.put(record)
        outbox.put(ended_by)
        outbox.put(picture)
        assert outbox.take(60.0) == [record, ended_by, picture]
    outbox.put(record)
    outbox.put_first(Failed("one"))
    assert outbox.take(60.0) == [Failed("one"), record]


def test_it_rings_once_for_all_that_waits_and_for_a_step_when_its_status_is_there() -> None:
    outbox, rings = Outbox(), []
    outbox.listen(lambda: rings.append("rung"))
    status = StateChanged(samples.status(1, num_tokens=5))
    outbox.put(samples.step_record(1))
    outbox.put(samples.row_picture(RowRequest(0, 5, 1)))
    assert rings == []
    outbox.put(status)
    outbox.put(status)
    assert len(rings) == 1, "once"
    assert len(outbox.take_all()) == 4
    outbox.put_first(Failed("x"))
    assert len(rings) == 2, "again, for they were taken out"
    outbox.listen(None)
    outbox.take_all()
    outbox.put(status)
    assert len(rings) == 2


def test_it_rings_for_a_picture_that_no_step_brought() -> None:
    """Looking back asks for pictures at rest, and no status follows them."""
    outbox, rings = Outbox(), []
    outbox.listen(lambda: rings.append("rung"))
    for number, picture in enumerate((samples.row_picture(RowRequest(0, 5, 1)), Unchanged(RowRequest(0, 12, 3)))):
        outbox.put(picture)
        assert len(rings) == number + 1
        outbox.take_all()


def test_a_window_that_takes_nothing_is_behind_until_it_does() -> None:
    outbox, update = Outbox(), Unchanged(RowRequest(0, 12, 3), reply_to=1)
    for _ in range(MAX_PICTURES - 1):
        outbox.put(update)
        outbox.put(Failed("no picture"))
    assert not outbox.is_behind
    outbox.put(update)
    assert outbox.is_behind
    assert not outbox.wait_for_room(0.0)
    assert len(outbox.take(0.0)) == 2 * MAX_PICTURES - 1
    assert not outbox.is_behind
    for _ in range(MAX_PICTURES):
        outbox.put(update)
    threading.Timer(0.05, outbox.take_all).start()
    assert outbox.wait_for_room(300.0)
    outbox.put(replace(outliers(1, 1)))
    for step in range(2 * MAX_PICTURES):
        outbox.put(outliers(1, step))
    assert not outbox.is_behind, "only the newest of them waits"


def test_who_rests_is_woken_by_pictures_answers_and_the_end_of_a_run_and_not_by_its_steps() -> None:
    going, over = (StateChanged(samples.status(1, num_tokens=5, running=running)) for running in (True, False))
    for event in (Failed("No room."), Unchanged(OutliersRequest(0, 12, 3), reply_to=1), over):
        outbox = Outbox()
        for _ in range(2):  # the second time nothing of the first is left
            for step in (samples.step_record(1), going):
                outbox.put(step)
            resting = threading.Thread(target=outbox.wait_for_urgent, args=(600.0,), daemon=True)
            resting.start()
            resting.join(0.02)
            assert resting.is_alive()
            outbox.put(event)
            resting.join(300.0)
            assert not resting.is_alive()
            assert outbox.take_all()[-1] is event
