"""Over a slow line what is large is sent in fewer cells, and whole where no step follows; none of it is ever wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from engine.look.finer import Finer
from engine.look.watch import Watcher
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.sampling import Prompt
from engine.wire.commands import SetPace, Watched
from engine.wire.encoding import decode_event, encode
from engine.wire.pictures import AttentionRequest, CellUpdate, HeadPicture, HeadRequest, WallPicture, WallRequest
from tests.engine.look.watching import MODES, Screen, assert_same
from tests.engine.tiny import model_of, prompt_ids

MOST = 16_000
WALL = Watched(WallRequest(0, 0, 0, "keys", False, 150, 16, only_farthest=True), id=1)
BOTH = Watched(WallRequest(0, 0, 0, "values", False, 150, 16), id=2)
HEAD = Watched(HeadRequest(0, 0, "values", 1, 1, 0, 0, 400), id=3)
ROW = Watched(AttentionRequest(0, 0, 1, 400), id=4)


class Line:
    """A session whose window is behind a slow line: what has time comes when `deliver` is called."""

    def __init__(self, spec: CacheSpec, length: int = 110) -> None:
        self.finer, self.largest = Finer(MOST), 0  # bytes that were sent together
        self.watcher = Watcher(finer=self.finer)
        self.watcher.set_pace(SetPace(None, None))
        self.session = Session(model_of("llama"), spec, prefill_chunk=length)
        self.screens = [Screen(watched) for watched in (WALL, BOTH, HEAD, ROW)]
        self.session.submit(Prompt(token_ids=prompt_ids(length)))
        self.session.step()
        self.show(self.watcher.watch(self.session, (WALL, BOTH, HEAD, ROW)))

    @property
    def wall(self) -> WallPicture:
        wall = self.screens[0].shown
        assert isinstance(wall, WallPicture)
        return wall

    def show(self, found: Iterable[Any]) -> None:
        sent = [encode(each) for each in found]
        self.largest = max(self.largest, sum(len(frame) for frames in sent for frame in frames))
        for screen in self.screens:
            screen.take(map(decode_event, sent))

    def step(self, *, is_last: bool = False) -> None:
        self.session.force(0, (5 + 7 * self.session.sequence(0).num_tokens % 90,))
        self.show(self.watcher.after_step(self.session, self.session.step(), is_last=is_last))

    def deliver(self) -> int:
        """Send what waits; how many there were."""
        count, largest = 0, self.largest
        while (whole := self.finer.oldest) is not None:
            self.show([whole])
            self.finer.sent(whole)
            count += 1
        self.largest = largest
        return count

    def check(self) -> None:
        """What is shown is what somebody gets who asks for as many cells."""
        assert self.largest <= MOST
        for screen in self.screens:
            self.session.live.memos.forget(0)
            assert_same(screen.shown, self.session.take_picture(screen.shown.request))
            assert getattr(screen.shown.request, "num_tokens", None) in (None, self.session.sequence(0).num_tokens)

    @property
    def is_whole(self) -> bool:
        return all(
            screen.shown.request.max_columns == screen.request.max_columns  # type: ignore[union-attr]
            for screen in self.screens
        )


@pytest.mark.parametrize("mode", ["growing", "paged-int8", "h2o", "kivi"])
def test_a_run_is_shown_in_fewer_cells_and_a_rest_in_all(mode: str) -> None:
    line = Line(MODES[mode])
    for round_ in range(3):
        for _ in range(5):
            line.step()
            line.check()
        assert line.finer.oldest is None, "of a run nothing waits"
        line.step(is_last=True)
        line.check()
        assert line.is_whole == (not line.deliver()), f"round {round_}"
        line.check()
        assert line.is_whole


def test_a_large_wall_goes_on_in_the_cells_that_have_come() -> None:
    line = Line(MODES["growing"])
    assert line.wall.tokens_per_column * line.wall.dims_per_row > 1, "it says so"
    line.show(line.watcher.catch_up(line.session))
    assert line.deliver()
    assert line.wall.tokens_per_column == line.wall.dims_per_row == 1
    line.step(is_last=True)
    assert line.screens[0].seen[-1] is CellUpdate
    assert line.is_whole
    line.check()


def test_what_is_still_on_its_way_when_a_step_comes_is_given_up() -> None:
    line = Line(MODES["growing"])
    line.show(line.watcher.catch_up(line.session))
    waiting = line.finer.oldest
    assert isinstance(waiting, HeadPicture)
    found = line.watcher.after_step(line.session, line.session.step(), is_last=False)
    assert line.finer.oldest is None
    assert any(isinstance(each, HeadPicture) for each in found), "not an update, in case the other had just gone"
    line.screens[2].take([waiting])
    line.show(found)
    line.check()
    line.step()
    line.show(line.watcher.at_phase(line.session))
    line.check()
    assert line.deliver()
    line.check()


def test_nobody_waits_for_a_picture_that_nobody_watches_any_more() -> None:
    line = Line(MODES["growing"])
    line.show(line.watcher.catch_up(line.session))
    line.watcher.watch(line.session, (ROW,))
    assert line.finer.oldest is None or line.finer.oldest.reply_to == ROW.id


def test_a_run_over_a_line_that_turns_out_to_be_fast_is_shown_whole() -> None:
    line = Line(MODES["growing"])
    line.step()
    assert not line.is_whole
    line.finer.most_bytes = 1 << 30
    line.step()
    assert line.is_whole
    assert line.finer.oldest is None
    line.largest = 0
    line.check()
