"""Of a run cells come with every picture, what is said of all rows four times a second: all of it at every rest."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from engine.look.watch import COUNTS_PER_SECOND, Watcher
from engine.wire.commands import SetPace
from engine.wire.pictures import CellUpdate, HeadPicture, WallPicture
from tests.engine.look.watching import MODES, PICTURES, Watching, assert_same

OF_ALL_ROWS = {
    WallPicture: ("magnitudes", "other_magnitudes"),
    HeadPicture: ("magnitudes", "counts", "edges", "limit", "lowest", "highest", "num_nan", "num_inf"),
}
PER_SECOND = 20


class Running:
    """A run at twenty steps a second of a clock that is moved by hand, each with its pictures."""

    def __init__(self, spec: Any) -> None:
        self.now = 100.0
        watcher = Watcher(lambda: self.now, lambda: 0.0)
        watcher.set_pace(SetPace(None, PER_SECOND))
        self.watching = Watching(spec, watcher=watcher)
        self.watching.follow(1)  # the rest of the prompt

    def step(self) -> None:
        self.now += 1.001 / PER_SECOND
        self.watching.follow(1)

    def told(self) -> list[Any]:
        """What the screens say of all rows."""
        shown = [screen.shown for screen in self.watching.screens]
        return [[getattr(piece, name) for name in OF_ALL_ROWS.get(type(piece), ())] for piece in shown]

    def check_cells(self) -> None:
        """Everything but what is said of all rows is that of now."""
        for screen in self.watching.screens:
            shown = screen.shown
            whole = self.watching.session.take_picture(shown.request)
            kept = {name: getattr(shown, name) for name in OF_ALL_ROWS.get(type(whole), ())}
            assert_same(shown, replace(whole, **kept))


@pytest.mark.parametrize("mode", MODES)
def test_cells_are_those_of_every_step_and_at_a_rest_so_is_what_is_said_of_all_rows(mode: str) -> None:
    running = Running(MODES[mode])
    for number in range(12):
        running.step()
        if number % 4 == 2:
            running.check_cells()
        if number == 7:  # somebody else looks, and all rows are counted anew
            running.watching.session.live.memos.forget(0)
            running.watching.session.take_picture(running.watching.screens[0].shown.request)
    owed = running.watching.watcher.catch_up(running.watching.session)
    running.watching.show(owed)
    running.watching.check()
    assert running.watching.watcher.catch_up(running.watching.session) == [], "nothing is owed any more"


@pytest.mark.parametrize("mode", ["growing", "paged", "h2o"])
def test_what_is_said_of_all_rows_follows_four_times_a_second(mode: str) -> None:
    running, wall = Running(MODES[mode]), 0
    seen = []
    for _ in range(PER_SECOND):
        before = running.watching.screens[wall].shown
        running.step()
        after = running.watching.screens[wall].shown
        if running.watching.screens[wall].seen[-1] is CellUpdate:
            seen.append(before.magnitudes is not after.magnitudes and after.magnitudes.limit.tolist())
    told = [limits for limits in seen if limits]
    assert PICTURES[wall].request.lens == "keys"
    assert len(seen) >= PER_SECOND - 4, "all but the walls that came whole"
    assert COUNTS_PER_SECOND - 1 <= len(set(map(str, told))) <= COUNTS_PER_SECOND + 4


def test_the_last_step_says_it_of_all_rows() -> None:
    running = Running(MODES["paged"])
    running.step()
    running.step()
    stale = running.told()
    session = running.watching.session
    session.force(0, (9,))
    running.watching.show(running.watching.watcher.after_step(session, session.step(), is_last=True))
    assert str(running.told()) != str(stale)
    running.watching.check()
