"""What takes a while says how far it is and, once its pace is known, how long it will take."""

from __future__ import annotations

from typing import Any

import pytest

from engine.loop import reporter as room
from engine.loop.inbox import Activity
from engine.loop.reporter import Reporter
from engine.wire.status import Work


class Quiet:
    """An inbox without a cancel, and an activity that nobody watches."""

    def check_uncancelled(self) -> None: ...

    def begin(self, label: str) -> None: ...


def test_time_left_is_told_from_the_pace_of_this_work(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told = [100.0], []
    monkeypatch.setattr(room.time, "monotonic", lambda: now[0])
    quiet: Any = Quiet()
    reporter = Reporter(lambda event: None, lambda: told.append(reporter.work), quiet, quiet)  # type: ignore[arg-type, return-value]

    def pieces() -> Any:
        for done in (0, 10, 20, 40):
            yield done, 100
            now[0] += 1.0
        yield "found"

    monkeypatch.setattr(room, "StateChanged", lambda status: status)
    assert reporter.follow("Writing x", pieces()) == "found"
    works: list[Work] = told  # type: ignore[assignment]
    assert [work.done for work in works] == [0, 10, 20, 40]
    assert [work.left_s for work in works] == [None, pytest.approx(9.0), pytest.approx(8.0), pytest.approx(4.5)]
    reporter.begin("Something else", 5, 100)
    assert works[-1].left_s is None, "another work has another pace"


def test_what_takes_a_while_within_something_else_leaves_it_what_is_done() -> None:
    activity, quiet = Activity(), Quiet()
    reporter = Reporter(lambda event: None, lambda: None, activity, quiet)  # type: ignore[arg-type, return-value]
    activity.begin("a decode step")
    with reporter.meanwhile("Recording a step"):
        assert activity.what == "recording a step"
    assert (activity.what, reporter.work) == ("a decode step", None)
