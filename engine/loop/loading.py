"""Loads models, and runs in a thread beside the loop what neither can be interrupted nor says how far it has come."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from engine.errors import Cancelled
from engine.loop.inbox import Activity, Inbox
from engine.loop.reporter import Reporter
from engine.spec.model import ModelSpec
from engine.wire.commands import Pause

if TYPE_CHECKING:
    from engine.model.loader import LoadedModel


CHECKS_EVERY_S = 0.05
REPORTS_EVERY_S = 1.0
ENDS_WITHIN_S = 5.0  # how long a cancelled thread is waited for: a compiler may run as a program of its own
LONG_TEXT = 20_000  # characters; a shorter text is tokenised within milliseconds
NAMED_AFTER_S = 0.1  # how long a text is tokenised before that is reported: most are counted while they are typed

Made = TypeVar("Made")


class WorkCancelled(SystemExit):
    """Raised in the background thread to end it. Not an `Exception`: compilers catch those and try something else."""


class BackgroundWork:
    """Runs functions in a background thread and waits for them; raises what they raise.

    A function must change nothing that others read: one that cannot be ended at once keeps running for a while, and its
    result is not used.
    """

    def __init__(self, inbox: Inbox, reporter: Reporter) -> None:
        self._inbox, self._reporter = inbox, reporter

    def compile(self, work: Callable[[], None]) -> None:
        """Run `work`, and report every second that it is still running. A command that interrupts a step raises
        `Cancelled` here and ends the thread."""
        label = self._reporter.work.label if self._reporter.work is not None else ""
        reported_s = -1

        def check(took_s: float) -> None:
            nonlocal reported_s
            self._inbox.check_uninterrupted(Pause)
            if label and int(took_s / REPORTS_EVERY_S) > reported_s:
                reported_s = int(took_s / REPORTS_EVERY_S)
                self._reporter.begin(f"{label}, {reported_s} s" if reported_s else label)

        _run_beside(work, check, _end)

    def tokenise(self, num_chars: int, work: Callable[[], Made]) -> Made:
        """What `work` returns, which tokenises so many characters.

        A long text is tokenised in a background thread, because a tokenizer can neither be interrupted nor say how far
        it has come, and a megabyte takes seconds. The work is named, and a Cancel raises `Cancelled` here at once: the
        thread is abandoned, and ends by itself when its tokenizer returns to Python.
        """
        if num_chars < LONG_TEXT:
            return work()
        with ExitStack() as naming:
            is_named = False

            def check(took_s: float) -> None:
                nonlocal is_named
                self._inbox.check_uncancelled()
                if took_s >= NAMED_AFTER_S and not is_named:
                    is_named = True
                    label = f"Tokenising {num_chars:,} characters"
                    naming.enter_context(self._reporter.meanwhile(label, can_cancel=True))

            return _run_beside(work, check, _interrupt)


def _run_beside(
    work: Callable[[], Made], check: Callable[[float], None], give_up: Callable[[threading.Thread], None]
) -> Made:
    """Run `work` in a thread that does not keep the process alive. `check` is called with the seconds so far until it
    has ended; if that raises `Cancelled`, the thread is given up."""
    made: list[Made] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            made.append(work())
        except BaseException as error:  # raised again by the thread that waits
            errors.append(error)

    thread = threading.Thread(target=run, name="kvloupe-beside", daemon=True)
    thread.start()
    began = time.monotonic()
    try:
        while thread.is_alive():
            check(time.monotonic() - began)
            thread.join(CHECKS_EVERY_S)
    except Cancelled:
        give_up(thread)
        raise
    if errors:
        raise errors[0]
    return made[0]


def _end(thread: threading.Thread) -> None:
    """Raise `WorkCancelled` in a thread, repeatedly in case something catches it, until it ends or time is up."""
    stop = time.monotonic() + ENDS_WITHIN_S
    while thread.is_alive() and time.monotonic() < stop:
        _interrupt(thread)
        thread.join(CHECKS_EVERY_S)


def _interrupt(thread: threading.Thread) -> None:
    """Raise `WorkCancelled` in a thread as soon as it runs Python code."""
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(WorkCancelled))


def load_model(
    spec: ModelSpec, reporter: Reporter, inbox: Inbox, activity: Activity, freed_bytes: int | None
) -> LoadedModel:
    """Load a model with progress; raises `Cancelled` if that is cancelled. `freed_bytes` are those of the present one;
    None where none is loaded."""
    with reporter.loading():
        reporter.begin("Starting torch and transformers", can_cancel=False)
        if freed_bytes is None:
            _import_libraries()
        from engine.model.loader import load

        model = load(spec, reporter.progress, freed_bytes=freed_bytes or 0)
    model.heartbeat, model.runners.announce = activity.mark, reporter.meanwhile
    if not reporter.is_inline:
        beside = BackgroundWork(inbox, reporter)
        model.runners.compiling, model.tokenising = beside.compile, beside.tokenise
    return model


def start_libraries(reporter: Reporter) -> None:
    """Import torch and transformers for the first model, which takes seconds, and say so."""
    reporter.begin("Starting torch and transformers", can_cancel=False)
    _import_libraries()


def _import_libraries() -> None:
    """Import torch and transformers without garbage collection, and exclude their objects from it afterwards. These are
    some 350,000 and stay for good: collections during the import take a seventh of its time, and a later full
    collection that visits them all would delay a step by 0.2 s."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        import engine.model.loader  # noqa: F401

        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()
