"""The engine in a process of its own: commands come in on its standard input, events go out on its standard output.

Its own prints, those of its libraries included, go to standard error, so that nothing can stand between two messages.
It ends when its standard input does: it never outlives its window, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from msgspec.structs import replace

from engine.client.outbox import FOLLOWED_BY_STATUS, Outbox, says_running
from engine.client.pulse import Pulse
from engine.client.stream import HEARTBEAT, read_frames, write_messages
from engine.loop.loop import EngineLoop
from engine.wire.commands import Shutdown
from engine.wire.encoding import Frame, WireError, decode_command, encode
from engine.wire.events import Event, Failed, Stopped
from engine.wire.records import StepRecord

HEARTBEAT_S = 1.0
# How long an export or a step may take to end tidily once the window is gone.
END_S = 1.0
# How long the steps of a run wait for pictures to go with. Every time that the thread which writes is woken takes from
# the thread that computes, and every message wakes the window.
IN_A_RUN_S = 0.05


def main() -> None:
    """Serve one window until it closes its end."""
    commands, events = _take_streams()
    _prepare_process()
    outbox = Outbox()
    loop = EngineLoop(outbox.put, lambda: outbox.is_behind)
    writer = threading.Thread(target=_write, args=(events, outbox, Pulse(loop.activity)), name="events", daemon=True)
    writer.start()
    threading.Thread(target=_read, args=(commands, loop, outbox), name="commands", daemon=True).start()
    loop.run()
    writer.join(END_S)  # it has said all when it has said that the engine stopped
    os._exit(0)


def _take_streams() -> tuple[IO[bytes], IO[bytes]]:
    """The pipes to the window; whoever prints or reads in this process gets standard error and nothing."""
    commands = os.fdopen(os.dup(0), "rb", buffering=1 << 16)
    events = os.fdopen(os.dup(1), "wb", buffering=1 << 16)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return commands, events


def _prepare_process() -> None:
    """Ctrl+C is the window's to handle; and where memory runs out, this process goes before the window."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", "ascii")


def _read(stream: IO[bytes], loop: EngineLoop, outbox: Outbox) -> None:
    """Hand commands to the loop until there are no more, then see to it that the process ends."""
    try:
        while (frames := read_frames(stream)) is not None:
            if frames:
                try:
                    loop.send(decode_command(frames))
                except WireError as error:
                    outbox.put(Failed(str(error)))
    except (OSError, WireError) as error:
        print(f"kvloupe: {error}", file=sys.stderr)
    loop.send(Shutdown())
    time.sleep(END_S)
    os._exit(0)


def _write(stream: IO[bytes], outbox: Outbox, pulse: Pulse) -> None:
    """Send every event up to the last, what the loop is busy with for long, and where there is nothing to say for a
    while, a sign of life. The steps that a run does between two pictures are sent together."""
    events: list[Event] = []
    while not (events and isinstance(events[-1], Stopped)):
        events = outbox.take(HEARTBEAT_S)
        told = (*_with_newest_status(events), *pulse.beat())
        messages = [message for event in told for message in _encoded(event)]
        try:
            write_messages(stream, messages or [HEARTBEAT])
        except OSError:  # the window is gone
            os._exit(0)
        if _is_run(events):
            outbox.rest(IN_A_RUN_S)


def _is_run(events: Sequence[Event]) -> bool:
    """Whether steps were done and others follow at once."""
    return any(isinstance(event, StepRecord) for event in events) and says_running(events[-1])


def _with_newest_status(events: Sequence[Event]) -> list[Event]:
    """Without a status after which nothing but steps and their pictures came before the next one says the same."""
    kept: list[Event] = []
    is_said_later = False
    for event in reversed(events):
        if says_running(event) and is_said_later:
            continue
        is_said_later = says_running(event) or (is_said_later and isinstance(event, FOLLOWED_BY_STATUS))
        kept.append(event)
    return kept[::-1]


def _encoded(event: Event) -> list[list[Frame]]:
    """The messages of an event, or of what went wrong with it. A step that is too large is sent without the rows that
    it dropped: who reads folds the pages from record to record, so that none may be missing."""
    try:
        return [encode(event)]
    except WireError as error:
        if isinstance(event, StepRecord) and event.evictions:
            words = f"What step {event.step} evicted is too much to be sent: the views of it stay empty for this step."
            return [*_encoded(replace(event, evictions=())), encode(Failed(words))]
        return [encode(Failed(str(error), reply_to=event.reply_to))]


if __name__ == "__main__":
    main()
