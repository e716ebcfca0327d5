"""Does the window stay at 30 pictures a second while a server's KV events come in?

A publisher in a process of its own sends prompts that share beginnings, and evictions, on loopback; the window shows
the layout *Servers* and paints the whole of it every 33 ms. Reported: pictures and events a second, how late a picture
is begun, what the window's process costs, and whether the events were all folded.

    python tests/benchmarks/serving_window.py [--short] [--rate 5000]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
from collections import deque
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.wire.serving import AttachServer

if TYPE_CHECKING:
    from engine.wire.serving import ServerState

BATCHES_PER_S, BLOCK, FRAME_MS, BLOCKS = 100, 16, 33, 20_000


def publish(pipe: Connection, rate: int, seconds: float) -> None:
    """Send `rate` events a second, each of one block: stored behind another of them, or evicted when BLOCKS live."""
    from tests.engine.serving.made_up import batch, removed, stored
    from tests.engine.serving.publisher import Publisher

    chance, live = random.Random(7), deque[int]()
    with Publisher() as publisher:
        pipe.send((publisher.endpoint, publisher.replay))
        publisher.wait()
        began, number = time.monotonic(), 0
        for seq in range(int(seconds * BATCHES_PER_S)):
            events = []
            while len(events) < rate // BATCHES_PER_S:
                if len(live) >= BLOCKS:
                    events.append(removed(live.popleft()))
                number += 1
                parent = chance.choice(live) if live and chance.random() < 0.9 else None
                ids = [chance.randrange(900) for _ in range(BLOCK)]
                events.append(stored([number], ids, parent, BLOCK))
                live.append(number)
            message = batch(seq, *events, time=time.time())
            publisher.held.append(message)
            publisher.send(message)
            time.sleep(max(0.0, began + (seq + 1) / BATCHES_PER_S - time.monotonic()))
        pipe.recv()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--short", action="store_true", help="5 seconds in place of 20")
    parser.add_argument("--rate", type=int, default=5000, help="events a second")
    args = parser.parse_args()
    seconds = 5.0 if args.short else 20.0
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    from PySide6.QtCore import Qt, QTimer
    from PySide6.QtWidgets import QApplication

    from app.control.controller import FrameClock
    from app.control.engine import Engine
    from app.kit.theme import load_fonts
    from app.shell import Shell
    from app.start.settings import Settings
    from engine.wire.serving import ServerSpec

    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=publish, args=(there, args.rate, seconds))
    server.start()
    endpoint, replay = here.recv()
    application = QApplication([])
    load_fonts()
    engine = Engine()
    shell = Shell(application, Settings(), engine.send, engine.drain)
    clock = FrameClock(shell.controller)
    engine.listen(clock.ring)
    clock.start()
    shell.window.resize(1600, 1000)
    shell.window.show()
    engine.send(AttachServer(ServerSpec(endpoint, replay)))
    shell.window.arrange("servers")

    def server_now() -> ServerState | None:
        return next(iter(shell.models.servers.all), None)

    late: list[float] = []
    last = time.monotonic()

    def paint() -> None:
        nonlocal last
        now = time.monotonic()
        late.append(now - last - FRAME_MS / 1000)
        last = now
        shell.window.repaint()

    timer = QTimer(interval=FRAME_MS, timerType=Qt.TimerType.PreciseTimer)
    timer.timeout.connect(paint)
    timer.start()
    began, spent = time.monotonic(), time.process_time()
    while time.monotonic() < began + seconds:
        application.processEvents()
        time.sleep(0.001)
    took, spent = time.monotonic() - began, time.process_time() - spent
    timer.stop()
    end = time.monotonic() + 10
    while time.monotonic() < end and (server_now() is None or server_now().counts.batches < seconds * BATCHES_PER_S):
        application.processEvents()
        time.sleep(0.01)
    here.send(None)
    now = server_now()
    assert now is not None
    sent, counts = int(seconds * BATCHES_PER_S), now.counts
    late.sort()
    print(f"{len(late) / took:.1f} pictures a second of the whole window, {1000 / FRAME_MS:.1f} asked for")
    print(
        f"a picture begins {late[len(late) // 2] * 1e3:.1f} ms late, 95 % below {late[len(late) * 95 // 100] * 1e3:.1f}"
    )
    print(
        f"{(counts.stored + counts.removed) / took:,.0f} events a second, {counts.batches:,} of {sent:,} batches folded"
    )
    print(
        f"{spent / took:.2f} of a core, {counts.live_blocks:,} blocks live; {'; '.join(now.notes) or 'nothing amiss'}"
    )
    engine.leave_servers(2.0)
    shell.window.close()


if __name__ == "__main__":
    main()
