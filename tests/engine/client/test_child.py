"""What an engine in a process of its own writes to its window, and when."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence

import pytest

from engine.client import child
from engine.client.child import PIECE_BYTES, Line, _is_run, _with_newest_status, _write
from engine.client.outbox import Outbox
from engine.client.pulse import Pulse
from engine.client.stream import Pieces, read_frames
from engine.look.finer import Finer
from engine.loop.inbox import Activity
from engine.wire.encoding import decode_event, encode
from engine.wire.events import Event, StateChanged, Stopped, Tokenized
from engine.wire.pictures import TableRequest, Unchanged
from tests.app import samples


class Pipe(io.BytesIO):
    """Knows how many bytes were there at every flush: who reads is woken as often."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed: list[int] = []

    def flush(self) -> None:
        self.flushed.append(self.tell())
        assert len(self.flushed) <= 3, "heartbeats: nobody rests"

    def read_events(self) -> list[list[Event]]:
        """What was told, by flushes."""
        found: list[list[Event]] = []
        self.seek(0)
        for end in self.flushed:
            found.append([])
            while self.tell() < end:
                found[-1].append(decode_event(read_frames(self) or []))
        return found


def of_step(step: int, *, running: bool = True) -> list[Event]:
    told = samples.status(step, num_tokens=samples.PROMPT + step, running=running)
    return [samples.step_record(step), StateChanged(told)]


class WaitingOutbox(Outbox):
    """An outbox into which a run puts its next steps while the writer waits for urgent ones."""

    def __init__(self, *during_rests: Sequence[Event]) -> None:
        super().__init__()
        self._during_rests = iter(during_rests)

    def wait_for_urgent(self, timeout_s: float) -> None:
        for event in next(self._during_rests):
            self.put(event)


def test_the_steps_that_a_run_does_during_a_rest_are_sent_together_with_the_newest_status() -> None:
    """None follows the last step of a run."""
    steps = [of_step(step, running=step < 5) for step in range(6)]
    outbox, pipe = WaitingOutbox([*steps[2], *steps[3], *steps[4]], [*steps[5], Stopped()]), Pipe()
    for event in steps[1]:
        outbox.put(event)
    _write(Line(pipe), outbox, Pulse(Activity()), threading.Event())
    kinds = [[getattr(event, "step", type(event).__name__) for event in events] for events in pipe.read_events()]
    assert kinds == [[1, "StateChanged"], [2, 3, 4, "StateChanged"], [5, "StateChanged", "Stopped"]]


def test_nothing_rests_behind_the_last_step_of_a_run_nor_behind_what_is_no_step() -> None:
    running = of_step(1)
    assert _is_run(running)
    assert not _is_run(of_step(1, running=False))
    assert not _is_run(running[1:]), "a run begins"
    assert not _is_run([*running, Tokenized((1,), (" a",))]), "somebody is answered"
    assert not _is_run([])


def test_a_status_is_left_out_where_only_steps_come_before_the_next_one_that_says_the_same() -> None:
    answer, picture = Tokenized((1,), (" a",)), Unchanged(TableRequest(0, 12))
    (one, begins), (two, goes_on), (three, ended) = of_step(1), of_step(2), of_step(3, running=False)
    assert _with_newest_status([one, begins, picture, two, goes_on]) == [one, picture, two, goes_on]
    kept = [one, begins, answer, two, goes_on, three, ended]
    assert _with_newest_status(kept) == kept, "the answer is of that status, and the run is over behind it"


# ---- a window on another machine -------------------------------------------------------------------------------------


class FarWindow(Pipe):
    """Reads a picture only while it is sent a heartbeat, as one behind a slow line does; notes what was unread then."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.line, self.num_read, self.unread = Line(self, Finer()), 0, [0]
        self.line.credit = limit

    def flush(self) -> None:
        super(Pipe, self).flush()
        pictures = self.getvalue().count(b"Unchanged")
        self.unread.append(pictures - self.num_read)
        if self.line.is_full:
            self.num_read += 1
            self.line.on_read()


def test_pictures_wait_until_the_window_has_read_those_before_them() -> None:
    pictures = [Unchanged(TableRequest(seq_id, 1), reply_to=100 + seq_id) for seq_id in range(20)]
    size = sum(len(frame) for frame in encode(pictures[0]))
    far = FarWindow(3 * size - 2)
    far.line.send_events(pictures)
    assert max(far.unread) == 3, "as many as the line is allowed to hold"
    assert far.getvalue().count(b"Unchanged") == 20, "none is lost"
    near = Line(pipe := Pipe())
    near.send_events(pictures)
    assert len(pipe.flushed) == 1, "nothing waits on this machine"


def test_what_has_time_goes_in_pieces_between_which_other_things_go_and_can_be_given_up() -> None:
    pipe, finer, answer = Pipe(), Finer(), Tokenized((1,), (" a",))
    pipe.flush = lambda: None  # type: ignore[method-assign]
    line = Line(pipe, finer)
    line.credit = 4 * PIECE_BYTES
    first, second = (Tokenized(tuple(range(30_000 + n)), ()) for n in range(2))
    finer.put("wall", first)
    assert line.send_pieces()
    assert not line.send_pieces(), "half of the credit is unread"
    assert pipe.tell() < 3 * PIECE_BYTES
    finer.drop("wall")
    line.send_events([answer])
    finer.put("wall", second)
    while finer.oldest is not None:
        line.on_read()
        line.send_pieces()
    pipe.seek(0)
    pieces, found = Pieces(), []
    while (frames := read_frames(pipe)) is not None:
        if (message := pieces.joined(frames)) is not None:
            found.append(decode_event(message))
    assert found == [answer, second]


class TimedLine(Line):
    """A line of so many bytes a second and so long a way there and back, whose clock is this one's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, bytes_per_s: float, way_s: float = 0.0) -> None:
        pipe, self.now, self.rate, self.way_s = Pipe(), 0.0, bytes_per_s, way_s
        pipe.flush = lambda: None  # type: ignore[method-assign]
        super().__init__(pipe, Finer())
        monkeypatch.setattr(child.time, "monotonic", lambda: self.now)
        self.carry(400)  # as a status

    def carry(self, num_bytes: float) -> None:
        """So many bytes are sent in a few messages, and read."""
        for _ in range(4):
            self._note_sent([bytes(round(num_bytes / 4))])
        self.now += self.way_s
        for _ in range(4):
            self.now += num_bytes / 4 / self.rate
            self.on_read()
        self.now += 1.0

    def carries(self) -> float:
        """Seconds that its credit is on its way after as many pictures as it takes to know the line."""
        for _ in range(20):
            self.carry(0.7 * self.credit)
        return self.credit / self.rate


@pytest.mark.parametrize("way_s", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("bytes_per_s", [1e6, 1e7, 1e9])
def test_what_is_on_its_way_follows_the_line(monkeypatch: pytest.MonkeyPatch, bytes_per_s: float, way_s: float) -> None:
    line = TimedLine(monkeypatch, bytes_per_s, way_s)
    assert 0.1 < line.carries() < 0.21
    assert line._finer is not None
    assert line._finer.most_bytes == round(0.75 * line.credit)
    line.rate /= 4
    assert 0.1 < line.carries() < 0.21, "it has become slower"


def test_small_messages_tell_nothing_about_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    line = TimedLine(monkeypatch, 1e6, 0.1)
    line.carries()
    known = line.credit
    for _ in range(20):
        line.carry(2000)
    assert line.credit == known


def test_a_run_waits_for_a_window_that_reads_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "LATE_S", 0.0)
    monkeypatch.setattr(child, "MOST_LATE_S", 600.0)
    now = [100.0]
    monkeypatch.setattr(child.time, "monotonic", lambda: now[0])
    line, event = Line(Pipe(), Finer()), Tokenized((1,), (" a",))
    line.send_events([event])
    line.wait_in_run()  # how long the line takes is not known yet
    now[0] += 0.01
    line.on_read()
    line.send_events([event])
    now[0] += 0.05  # more than it took
    run = threading.Thread(target=line.wait_in_run, daemon=True)
    run.start()
    run.join(0.05)
    assert run.is_alive()
    line.on_read()
    run.join(300)
    assert not run.is_alive()
