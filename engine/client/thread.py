"""The thread client: runs the engine in a thread of this process, for a GPU, whose work does not hold the interpreter
lock."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from engine.client import ClientKind
from engine.client.outbox import Outbox
from engine.client.pulse import Pulse
from engine.loop.loop import EngineLoop
from engine.wire.commands import Shutdown
from engine.wire.events import EngineLost, Event, Failed
from engine.wire.message import Command

log = logging.getLogger(__name__)


class ThreadClient:
    """An engine loop in a daemon thread, which does not keep the process alive."""

    kind: ClientKind = "thread"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._events = Outbox()
        self._cause = ""  # why the engine is gone; empty while it lives
        self._loop = EngineLoop(self._events.put, lambda: self._events.is_behind)
        self._pulse = Pulse(self._loop.activity, clock)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def send(self, command: Command) -> None:
        if self._cause:
            self._events.put(Failed(f"{self._cause}: restart it.", reply_to=command.id))
            return
        self._loop.send(command)

    def drain(self) -> list[Event]:
        return [*self._events.take_all(), *([] if self._cause else self._pulse.beat())]

    def listen(self, callback: Callable[[], None] | None) -> None:
        self._events.listen(callback)

    def close(self, timeout_s: float = 2.0) -> bool:
        self._loop.send(Shutdown())
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException as error:
            log.exception("the engine's thread ended")
            self._cause = f"The engine ended with an error ({type(error).__name__}: {error})"
            self._events.put(EngineLost(self._cause))
