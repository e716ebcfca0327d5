"""The main program of the engine process: commands come in on standard input, events go out on standard output.

Whatever is printed, by libraries too, goes to standard error, so that nothing can come between two messages. The
process ends when its standard input does, so that it never outlives its window.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from msgspec.structs import replace

from engine.client.outbox import FOLLOWED_BY_STATUS, Outbox, says_running
from engine.client.pulse import Pulse
from engine.client.ssh import hello
from engine.client.stream import HEARTBEAT, is_echo, pieces_of, read_frames, write_messages
from engine.look.finer import Finer
from engine.loop.loop import EngineLoop
from engine.wire.commands import Shutdown
from engine.wire.encoding import Frame, WireError, decode_command, encode
from engine.wire.events import Event, Failed, Stopped
from engine.wire.pictures import Picture, PictureUpdate
from engine.wire.records import StepRecord

HEARTBEAT_S = 1.0
# How long an export or a step may take to end once the window is gone.
END_S = 1.0
# How long the records of a run are held back, to be sent together with the next pictures: every wake-up of the writing
# thread takes time from the computing one, and every message wakes the window.
IN_A_RUN_S = 0.05
# How late a window on another machine may read a record before the run waits for it, and how long a step waits at most.
LATE_S, MOST_LATE_S = 0.1, 1.0
# What the line carries in this time may be on its way; a line that has not been measured yet has the first credit, and
# none has less than the least one.
AHEAD_S, FIRST_CREDIT, LEAST_CREDIT = 0.15, 1 << 17, 1 << 15
# The rate is the highest of so many measurements, which take so long each if the line is not at rest before. None takes
# the line for more than so many times faster than what it carried in all of its time, its delay included.
RATES, MEASURE_S, FASTER = 8, 0.1, 4
# Shares of the credit: unread messages before which new pictures are made, those before which a whole picture goes on
# in pieces, and what tells something about the rate; and by how much a credit must be another one to be taken.
IN_FRONT, IN_PIECES, TELLS, OTHER = 0.25, 0.5, 0.5, 1.25
PIECE_BYTES = 1 << 14


def main(*, is_far: bool = False) -> None:
    """Serve one window until it closes its end of the pipes. `is_far`: the window is on another machine. It is told
    first which engine this is, no more pictures are on their way to it than the line carries at once, and a run is no
    faster than it reads."""
    commands, events = _take_streams()
    _prepare_process()
    if is_far:
        events.write(hello())
        events.flush()
    finer = Finer() if is_far else None
    line, outbox = Line(events, finer), Outbox()
    if finer is not None:
        finer.wake = outbox.wake

    def emit(event: Event) -> None:
        outbox.put(event)
        if isinstance(event, StepRecord):
            line.wait_in_run()

    loop = EngineLoop(emit if is_far else outbox.put, lambda: outbox.is_behind or line.is_used(IN_FRONT), finer)
    is_broken = threading.Event()
    writer = threading.Thread(
        target=_write, args=(line, outbox, Pulse(loop.activity), is_broken), name="events", daemon=True
    )
    writer.start()
    threading.Thread(target=_read, args=(commands, line, loop, outbox, is_broken), name="commands", daemon=True).start()
    loop.run()
    writer.join(END_S)  # it ends after it has sent `Stopped`, the last event
    os._exit(int(is_broken.is_set()))


def _take_streams() -> tuple[IO[bytes], IO[bytes]]:
    """Take standard input and output as the pipes to the window. Afterwards prints in this process go to standard
    error, and reads from standard input give nothing."""
    commands = os.fdopen(os.dup(0), "rb", buffering=1 << 16)
    events = os.fdopen(os.dup(1), "wb", buffering=1 << 16)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return commands, events


def _prepare_process() -> None:
    """Leave Ctrl+C to the window, and have Linux kill this process before the window when memory runs out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", "ascii")


class Line:
    """The stream of events to a window. With a `finer` it is one to another machine, whose window returns an empty
    message for each that it has read. What lies in the buffers of a slow line only grows old: pictures wait while as
    many bytes as its credit are unread, and a run while what was sent is read `LATE_S` later than it could be. New
    pictures are made only while at most `IN_FRONT` of the credit is unread, and take the rest at most; larger ones have
    a coarser one in their place, and go in pieces when nothing else does, up to `IN_PIECES` of it."""

    def __init__(self, stream: IO[bytes], finer: Finer | None = None) -> None:
        self._stream, self._finer = stream, finer
        self._writing, self._read = threading.Lock(), threading.Condition()
        self._unread: deque[tuple[float, int]] = deque()  # when each message was sent, and its bytes
        self._num_unread, self._least_s = 0, float("inf")  # bytes, and the least time in which a message was read
        # the present measurement: its beginning, bytes read since, and whether nothing was on its way before
        self._busy_since, self._num_read, self._is_from_rest = 0.0, 0, False
        self._rates: deque[float] = deque(maxlen=RATES)  # bytes a second
        self._set_credit(FIRST_CREDIT)
        self._whole: Event | None = None  # the picture that goes in pieces, and those that are left of it
        self._pieces: Iterator[list[Frame]] = iter(())

    def is_used(self, share: float) -> bool:
        """Whether that share of the credit is on its way, or more."""
        return self._finer is not None and self._num_unread >= share * self.credit

    @property
    def is_full(self) -> bool:
        """Whether pictures wait for earlier messages to be read."""
        return self.is_used(1.0)

    def on_read(self) -> None:
        """Note that the window has read its oldest message."""
        with self._read:
            if self._unread:
                now = time.monotonic()
                sent, size = self._unread.popleft()
                self._num_unread -= size
                self._num_read += size
                self._least_s = min(self._least_s, now - sent)
                self._measure(now)
            self._read.notify_all()
        if self._finer is not None and self._finer.oldest is not None:
            self._finer.wake()

    def _measure(self, now: float) -> None:
        """Have the credit follow the rate of the line. What it carries while much less is sent than it may tells
        nothing: much of it was never in the line."""
        took_s, tells = now - self._busy_since, self._num_read >= TELLS * self.credit
        if self._unread and not (tells and took_s >= MEASURE_S):
            return
        if tells:
            flowed_s = max(took_s - self._least_s * self._is_from_rest, took_s / FASTER)
            self._rates.append(self._num_read / max(flowed_s, 1e-6))
            credit = max(LEAST_CREDIT, round(max(self._rates) * AHEAD_S))
            if not 1 / OTHER < credit / self.credit < OTHER:
                self._set_credit(credit)
        self._busy_since, self._num_read, self._is_from_rest = now, 0, False

    def _set_credit(self, credit: int) -> None:
        self.credit = credit
        if self._finer is not None:
            self._finer.most_bytes = round(credit * (1 - IN_FRONT))

    def wait_in_run(self) -> None:
        """Wait while the line is late, at most `MOST_LATE_S`."""
        with self._read:
            self._read.wait_for(lambda: not self._is_late, MOST_LATE_S)

    @property
    def _is_late(self) -> bool:
        return bool(self._unread) and time.monotonic() - self._unread[0][0] > LATE_S + self._least_s

    def send(self, messages: Sequence[Sequence[Frame]]) -> None:
        with self._writing:
            write_messages(self._stream, messages)

    def send_events(self, events: Sequence[Event]) -> None:
        """Send events together, as far as none of them has to wait."""
        ready: list[list[Frame]] = []
        for event in events:
            messages = _encoded(event)
            if self._finer is not None:
                if isinstance(event, Picture | PictureUpdate):
                    ready = self._wait_for_room(ready)
                for message in messages:
                    self._note_sent(message)
            ready += messages
        self.send(ready or [HEARTBEAT])

    def send_pieces(self) -> bool:
        """Send pieces of the whole picture that is next, as far as there is room; whether there was one."""
        was_sent = False
        while self._finer is not None and (whole := self._finer.oldest) is not None and not self.is_used(IN_PIECES):
            if whole is not self._whole:
                self._whole, self._pieces = whole, pieces_of(_encoded(whole)[0], PIECE_BYTES)
            piece = next(self._pieces, None)
            if piece is None:
                self._finer.sent(whole)
                continue
            self._note_sent(piece)
            self.send([piece])
            was_sent = True
        return was_sent

    def _note_sent(self, message: Sequence[Frame]) -> None:
        now, size = time.monotonic(), sum(map(len, message))
        with self._read:
            if not self._unread:
                self._busy_since, self._num_read, self._is_from_rest = now, 0, True
            self._unread.append((now, size))
            self._num_unread += size

    def _wait_for_room(self, ready: list[list[Frame]]) -> list[list[Frame]]:
        """Wait until the line is not full; what is ready is sent then, and heartbeats. Returns what is left to send."""
        while self.is_full:
            self.send(ready or [HEARTBEAT])
            ready = []
            with self._read:
                self._read.wait_for(lambda: not self.is_full, HEARTBEAT_S)
        return ready


def _read(stream: IO[bytes], line: Line, loop: EngineLoop, outbox: Outbox, is_broken: threading.Event) -> None:
    """Pass commands to the loop until the stream ends, then shut the loop down and end the process. `is_broken` is set
    where something that is no message ends it."""
    try:
        while (frames := read_frames(stream)) is not None:
            if not frames:
                line.on_read()
            elif is_echo(frames):
                line.send([frames])
            else:
                try:
                    loop.send(decode_command(frames))
                except WireError as error:
                    outbox.put(Failed(str(error)))
    except (OSError, WireError) as error:
        print(f"kvloupe: {error}", file=sys.stderr, flush=True)
        is_broken.set()
    loop.send(Shutdown())
    time.sleep(END_S)
    os._exit(int(is_broken.is_set()))


def _write(line: Line, outbox: Outbox, pulse: Pulse, is_broken: threading.Event) -> None:
    """Send all events up to `Stopped`, and what the loop is busy with if that takes long; without an event for
    `HEARTBEAT_S` a heartbeat. The records of a run between two pictures are sent together. Where the stream of commands
    `is_broken`, `Stopped` is not sent: the window did not ask for this end, and says why it came."""
    events: list[Event] = []
    while not (events and isinstance(events[-1], Stopped)):
        events = outbox.take(HEARTBEAT_S)
        to_send = [*_with_newest_status(events), *pulse.beat()]
        if is_broken.is_set():
            to_send = [event for event in to_send if not isinstance(event, Stopped)]
        try:
            if to_send or not line.send_pieces():
                line.send_events(to_send)
        except OSError:  # the window is gone
            os._exit(0)
        if _is_run(events):
            outbox.wait_for_urgent(IN_A_RUN_S)


def _is_run(events: Sequence[Event]) -> bool:
    """Whether these events are of a run that continues: records, and a last status that says so."""
    return any(isinstance(event, StepRecord) for event in events) and says_running(events[-1])


def _with_newest_status(events: Sequence[Event]) -> list[Event]:
    """The events without those statuses of a run that a later one makes superfluous: only records and pictures of its
    steps lie between the two."""
    kept: list[Event] = []
    is_said_later = False
    for event in reversed(events):
        if says_running(event) and is_said_later:
            continue
        is_said_later = says_running(event) or (is_said_later and isinstance(event, FOLLOWED_BY_STATUS))
        kept.append(event)
    return kept[::-1]


def _encoded(event: Event) -> list[list[Frame]]:
    """The messages of an event, or of its failure to be encoded. A record that is too large is sent without its evicted
    rows: it cannot be left out, since the reader folds page events from record to record."""
    try:
        return [encode(event)]
    except WireError as error:
        if isinstance(event, StepRecord) and event.evictions:
            words = f"What step {event.step} evicted is too much to be sent: the views of it stay empty for this step."
            return [*_encoded(replace(event, evictions=())), encode(Failed(words))]
        return [encode(Failed(str(error), reply_to=event.reply_to))]


if __name__ == "__main__":
    main()
