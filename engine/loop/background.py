"""Runs work in a background thread that itself can neither be cancelled nor report progress: a compilation."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

from engine.errors import Cancelled
from engine.loop.inbox import Inbox
from engine.loop.reporter import Reporter
from engine.wire.commands import Pause

CHECKS_EVERY_S = 0.05
REPORTS_EVERY_S = 1.0
ENDS_WITHIN_S = 5.0  # how long a cancelled thread is waited for: a compiler may run as a program of its own


class WorkCancelled(SystemExit):
    """Raised in the background thread to end it. Not an `Exception`: compilers catch those and try something else."""


class BackgroundWork:
    """Called with a function, runs it in a background thread and waits: reports every second that it is still running,
    and raises what the function raises.

    A command that interrupts a step raises `Cancelled` here and ends the thread. The function must change nothing that
    others read: where it cannot be ended at once it keeps running for a while, and its result is not used.
    """

    def __init__(self, inbox: Inbox, reporter: Reporter) -> None:
        self._inbox, self._reporter = inbox, reporter

    def __call__(self, work: Callable[[], None]) -> None:
        done = _Outcome(work)
        thread = threading.Thread(target=done.run, name="kvloupe-beside", daemon=True)
        label = self._reporter.work.label if self._reporter.work is not None else ""
        began, reported_s = time.monotonic(), -1
        thread.start()
        try:
            while thread.is_alive():
                self._inbox.check_uninterrupted(Pause)
                took_s = int((time.monotonic() - began) / REPORTS_EVERY_S)
                if label and took_s > reported_s:
                    reported_s = took_s
                    self._reporter.begin(f"{label}, {took_s} s" if took_s else label)
                thread.join(CHECKS_EVERY_S)
        except Cancelled:
            _end(thread)
            raise
        if done.error is not None:
            raise done.error


class _Outcome:
    """Runs the function and keeps the error that it raised."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # raised again by the thread that waits
            self.error = error


def _end(thread: threading.Thread) -> None:
    """Raise `WorkCancelled` in a thread, repeatedly in case something catches it, until it ends or time is up."""
    stop = time.monotonic() + ENDS_WITHIN_S
    while thread.is_alive() and thread.ident is not None and time.monotonic() < stop:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(WorkCancelled))
        thread.join(CHECKS_EVERY_S)
