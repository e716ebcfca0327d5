"""What an engine in a process of its own writes to its window, and when."""

from __future__ import annotations

import io

from engine.client.child import _is_run, _write
from engine.client.outbox import Outbox
from engine.client.pulse import Pulse
from engine.client.stream import read_frames
from engine.loop.activity import Activity
from engine.wire.encoding import decode_event
from engine.wire.events import Event, StateChanged, Stopped, Tokenized
from engine.wire.records import StepRecord
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


def of_step(step: int, *, running: bool) -> list[Event]:
    told = samples.status(step, num_tokens=samples.PROMPT + step, running=running)
    return [samples.step_record(step), StateChanged(told)]


def test_the_steps_that_a_run_does_during_a_rest_are_sent_together() -> None:
    outbox, pipe = Outbox(), Pipe()
    during_rests = iter(([2, 3, 4], [5]))

    def rest(_: float) -> None:
        events = [event for step in next(during_rests) for event in of_step(step, running=step < 5)]
        for event in (*events, *[Stopped()] * (len(events) == 2)):
            outbox.put(event)

    for event in of_step(1, running=True):
        outbox.put(event)
    _write(pipe, outbox, Pulse(Activity()), rest)
    told = pipe.read_events()
    assert [[one.step for one in events if isinstance(one, StepRecord)] for events in told] == [[1], [2, 3, 4], [5]]
    assert isinstance(told[-1][-1], Stopped)


def test_nothing_rests_behind_the_last_step_of_a_run_nor_behind_what_is_no_step() -> None:
    running = of_step(1, running=True)
    assert _is_run(running)
    assert not _is_run(of_step(1, running=False))
    assert not _is_run(running[1:]), "a run begins"
    assert not _is_run([*running, Tokenized((1,), (" a",))]), "somebody is answered"
    assert not _is_run([])
