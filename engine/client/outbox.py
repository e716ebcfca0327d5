"""The queue of events to a window, which may be slower than its engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition, RLock

from engine.wire.events import Event, StateChanged
from engine.wire.pictures import Picture, PictureUpdate
from engine.wire.records import StepRecord

FOLLOWED_BY_STATUS = StepRecord | Picture | PictureUpdate
# The number of waiting pictures from which the window is behind; then updates of several steps are merged.
MAX_PICTURES = 32


class Outbox:
    """A queue of events between two threads. A complete picture replaces waiting older ones of the same request.
    Updates of pictures are never evicted, since each builds on the one before; the engine merges them while the window
    `is_behind`. So a slow window gets fewer pictures, and the queue does not grow without bound."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        lock = RLock()
        self._ready, self._urgent = Condition(lock), Condition(lock)
        self._callback: Callable[[], None] | None = None
        self._has_notified = False
        self._num_pictures = 0
        self._is_urgent = False  # something else waits than records and statuses of a run
        self._is_awake = False  # whoever takes is to look about
        self._is_within_step = False  # the status that follows a record and its pictures has not come yet

    @property
    def is_behind(self) -> bool:
        """Whether `MAX_PICTURES` pictures wait to be taken out."""
        return self._num_pictures >= MAX_PICTURES

    def wait_for_room(self, timeout_s: float) -> bool:
        """Wait until the window is no longer behind, at most `timeout_s`; whether it is not behind."""
        with self._ready:
            return self._ready.wait_for(lambda: not self.is_behind, timeout_s)

    def listen(self, callback: Callable[[], None] | None) -> None:
        """Set a callback, called on the thread that puts events in when events wait: once until they are taken out. It
        is not called for the record and pictures of a step before the status that follows them."""
        with self._ready:
            self._callback, self._has_notified = callback, False

    def put(self, event: Event) -> None:
        """Append an event, and wake whoever waits for it."""
        with self._ready:
            if isinstance(event, Picture) and event.reply_to:
                self._drop_older(event)
            self._events.append(event)
            is_picture = isinstance(event, Picture | PictureUpdate)
            self._num_pictures += is_picture
            self._is_within_step = isinstance(event, StepRecord) or (is_picture and self._is_within_step)
            self._is_urgent = self._is_urgent or not _is_of_run(event)
            if not self._is_within_step:
                self._wake()

    def put_first(self, event: Event) -> None:
        """Put an event before all waiting ones."""
        with self._ready:
            self._events.appendleft(event)
            self._is_urgent, self._is_within_step = True, False
            self._wake()

    def take(self, timeout_s: float) -> list[Event]:
        """Take out all events, waiting for the first one at most `timeout_s`. The record and pictures of a step are
        held until the status that follows them, since every wake-up of the taking thread costs the computing one."""
        with self._ready:
            self._ready.wait_for(lambda: self._is_awake or (self._events and not self._is_within_step), timeout_s)
            was_woken, self._is_awake = self._is_awake, False
            return [] if was_woken and self._is_within_step else self.take_all()

    def wake(self) -> None:
        """End a `take`, with or without events."""
        with self._ready:
            self._is_awake = True
            self._ready.notify_all()

    def wait_for_urgent(self, timeout_s: float) -> None:
        """Wait for `timeout_s`, or until something else comes than records and statuses of a continuing run: a picture,
        an answer, the end of the run."""
        with self._urgent:
            self._urgent.wait_for(lambda: self._is_urgent, timeout_s)

    def take_all(self) -> list[Event]:
        """Take out all events without waiting."""
        with self._ready:
            events = list(self._events)
            self._events.clear()
            self._num_pictures, self._has_notified, self._is_urgent = 0, False, False
            self._ready.notify_all()
        return events

    def _wake(self) -> None:
        """Wake threads that wait for any event, those that wait for an urgent one if there is one, and whoever
        listens."""
        self._ready.notify_all()
        if self._is_urgent:
            self._urgent.notify_all()
        if self._callback is not None and not self._has_notified:
            self._has_notified = True
            self._callback()

    def _drop_older(self, event: Picture) -> None:
        is_older = [
            isinstance(old, Picture | PictureUpdate)
            and old.reply_to == event.reply_to
            and type(old.request) is type(event.request)
            for old in self._events
        ]
        if any(is_older):
            self._num_pictures -= sum(is_older)
            self._events = deque(old for old, is_gone in zip(self._events, is_older, strict=True) if not is_gone)


def _is_of_run(event: Event) -> bool:
    """Whether the event is a step's record, or a status that says that a run continues."""
    return isinstance(event, StepRecord) or says_running(event)


def says_running(event: Event) -> bool:
    """Whether the event is a status that says that a run continues."""
    return isinstance(event, StateChanged) and event.status.running
