"""Work beside the loop, for what neither looks for a cancel nor says how far it is: a compilation."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

from engine.errors import Cancelled
from engine.loop.inbox import Inbox
from engine.loop.reporter import Reporter
from engine.wire.commands import Pause

LOOKS_EVERY_S = 0.05
SAYS_EVERY_S = 1.0
ENDS_WITHIN_S = 5.0  # a compiler that runs as a program of its own is waited for so long


class GivenUp(SystemExit):
    """What is done is wanted no more. It is no `Exception`: compilers catch those and try something else."""


class Beside:
    """Called with work, does it in a thread of its own, says every second that it goes on, and raises what it raises.

    A command that ends a step raises `Cancelled`: the thread is then told to end. The work must change nothing that
    others read: where it cannot be ended at once it goes on behind whatever comes next, and what it made is unused.
    """

    def __init__(self, inbox: Inbox, reporter: Reporter) -> None:
        self._inbox, self._reporter = inbox, reporter

    def __call__(self, work: Callable[[], None]) -> None:
        done = _Done(work)
        thread = threading.Thread(target=done.run, name="kvloupe-beside", daemon=True)
        label = self._reporter.work.label if self._reporter.work is not None else ""
        began, said_s = time.monotonic(), -1
        thread.start()
        try:
            while thread.is_alive():
                self._inbox.check_uninterrupted(Pause)
                took_s = int((time.monotonic() - began) / SAYS_EVERY_S)
                if label and took_s > said_s:
                    said_s = took_s
                    self._reporter.begin(f"{label}, {took_s} s" if took_s else label)
                thread.join(LOOKS_EVERY_S)
        except Cancelled:
            _end(thread)
            raise
        if done.error is not None:
            raise done.error


class _Done:
    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # raised where the work is waited for
            self.error = error


def _end(thread: threading.Thread) -> None:
    """Raise `GivenUp` in a thread, again where something caught it, and wait a moment for its end."""
    stop = time.monotonic() + ENDS_WITHIN_S
    while thread.is_alive() and thread.ident is not None and time.monotonic() < stop:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(GivenUp))
        thread.join(LOOKS_EVERY_S)
