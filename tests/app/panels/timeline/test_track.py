"""Where things stand on the timeline: a place and what stands there name each other."""

from __future__ import annotations

import pytest

from app.panels.timeline import TimelineTrack


def test_alone_the_path_takes_the_whole_line() -> None:
    track = TimelineTrack(width=1104, count=11)
    assert (track.start, track.tip, track.end) == (52, 1052, 1052)
    assert [track.x_of(index) for index in (0, 3, 10)] == [52, 352, 1052]
    assert (track.ahead_at(1090), track.left_at(1090), track.num_ahead) == (0, None, 0)


@pytest.mark.parametrize("num_left", [1, 5, 400])
def test_every_moment_that_was_left_is_found_where_it_stands(num_left: int) -> None:
    track = TimelineTrack(width=1104, count=11, num_left=num_left)
    assert track.end - track.tip <= 400
    some = {0, num_left // 3, num_left - 1}
    if num_left < 50:
        assert {index: track.left_at(track.x_of_left(index)) for index in some} == {index: index for index in some}
    assert track.x_of_left(num_left - 1) == track.end
    assert track.left_at(track.tip + 3) is None, "the handle is there"
    assert track.left_at(track.tip - 50) is None


def test_steps_ahead_are_as_wide_as_those_before_where_these_are_many() -> None:
    few, many = TimelineTrack(width=1104, count=5, goes_on=True), TimelineTrack(width=1104, count=1001, goes_on=True)
    assert few.end - few.tip == 120
    assert few.num_ahead == 16
    assert many.num_ahead == round(120 / (880 / 1000)) == 136
    for track in (few, many):
        for ahead in (track.num_ahead // 3, track.num_ahead):
            assert track.ahead_at(track.x_of_ahead(ahead)) == ahead
    assert few.ahead_at(few.end + 40) == 16
    assert few.ahead_at(few.tip + 5) == 0
    assert few.ahead_at(few.tip - 100) == 0


def test_what_was_left_has_the_room_and_none_is_offered_ahead() -> None:
    assert TimelineTrack(width=1104, count=5, num_left=3, goes_on=True).num_ahead == 0
