"""Python's cyclic garbage, which only the window's thread may collect where there is a window.

Python collects in whatever thread creates an object. In a process with a window that is too early or in the wrong
place: the collection may delete a widget while Qt walks a list of all widgets, or a Qt object from the engine's thread.
Both crash. There the window disables automatic collection and collects between two events.
"""

from __future__ import annotations

import gc
import threading

# How long `collect` waits for the window, which may be in a menu of the system or at its end.
WAIT_S = 0.5
# Collections of the middle generation between two of the oldest, where Python sets no number.
FULL_EVERY = 10


class Garbage:
    """The one collector of a process: Python's own, until a thread takes it over with `own`."""

    def __init__(self) -> None:
        self.is_owned = False
        self._wanted, self._done = threading.Event(), threading.Event()

    def own(self) -> None:
        """Disable automatic collection: the calling thread calls `collect_due` from now on."""
        gc.disable()
        self.is_owned = True

    def disown(self) -> None:
        """Enable automatic collection again."""
        self.is_owned = False
        self._done.set()
        gc.enable()

    def collect(self) -> None:
        """Collect all garbage, or have the owner do it and wait for that, at most `WAIT_S`. Not for the owner's
        thread."""
        if not self.is_owned:
            gc.collect()
            return
        self._done.clear()
        self._wanted.set()
        self._done.wait(WAIT_S)

    def collect_due(self) -> None:
        """Collect the oldest generation that is due by Python's own thresholds, or all if `collect` waits for it. The
        oldest generation of all, which has no threshold from Python 3.14 on, is due after `FULL_EVERY` younger ones."""
        if self._wanted.is_set():
            self._wanted.clear()
            gc.collect()
            self._done.set()
            return
        thresholds = (*gc.get_threshold()[:2], gc.get_threshold()[2] or FULL_EVERY)
        due = [count > threshold for count, threshold in zip(gc.get_count(), thresholds, strict=True)]
        if any(due):
            gc.collect(max(generation for generation, is_due in enumerate(due) if is_due))


garbage = Garbage()
