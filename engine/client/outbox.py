"""Events on their way to a window that may be slower than its engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition, RLock

from engine.wire.events import Event, StateChanged
from engine.wire.records import StepRecord
from engine.wire.slices import Slice, SliceUpdate

FOLLOWED_BY_STATUS = StepRecord | Slice | SliceUpdate
# So many pictures may wait; then a window is behind, and gets those of several steps as one.
MAX_PICTURES = 32


class Outbox:
    """Events in order, put in by one thread and taken out by another. Of a picture that is sent whole again, what was
    not taken out yet is dropped. Updates of pictures are not, each builds on the one before: who makes them is told
    when the window `is_behind`, and makes one of many. A slow window costs pictures, and no memory that grows."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        lock = RLock()
        self._ready, self._urgent = Condition(lock), Condition(lock)
        self._ring: Callable[[], None] | None = None
        self._has_rung = False
        self._num_pictures = 0
        self._is_urgent = False  # more waits than what a run tells of its steps
        self._is_within_step = False  # the status that follows a step and its pictures is still to come

    @property
    def is_behind(self) -> bool:
        """Whether as many pictures wait as may."""
        return self._num_pictures >= MAX_PICTURES

    def wait_for_room(self, timeout_s: float) -> bool:
        """Wait until the window is not behind, or so long; whether it is not."""
        with self._ready:
            return self._ready.wait_for(lambda: not self.is_behind, timeout_s)

    def listen(self, ring: Callable[[], None] | None) -> None:
        """Call this, on the thread that puts events in, when there is something to be taken out: once until it is. The
        record and the pictures of a step wait for the status that follows them, and are taken out together."""
        with self._ready:
            self._ring, self._has_rung = ring, False

    def put(self, event: Event) -> None:
        with self._ready:
            if isinstance(event, Slice) and event.reply_to:
                self._drop_older(event)
            self._events.append(event)
            is_picture = isinstance(event, Slice | SliceUpdate)
            self._num_pictures += is_picture
            self._is_within_step = isinstance(event, StepRecord) or (is_picture and self._is_within_step)
            self._is_urgent = self._is_urgent or not _is_of_run(event)
            if not self._is_within_step:
                self._wake()
            if not isinstance(event, FOLLOWED_BY_STATUS):
                self._ring_once()

    def put_first(self, event: Event) -> None:
        with self._ready:
            self._events.appendleft(event)
            self._is_urgent, self._is_within_step = True, False
            self._wake()
            self._ring_once()

    def take(self, timeout_s: float) -> list[Event]:
        """All events, as soon as there are any; none where none come in time. The record of a step and its pictures
        wait for the status that follows them: each waking of the thread that takes them out costs the one that
        computes."""
        with self._ready:
            self._ready.wait_for(lambda: self._events and not self._is_within_step, timeout_s)
            return self.take_all()

    def rest(self, timeout_s: float) -> None:
        """Wait so long, or until there is more than records and statuses of a run that goes on: pictures, an answer,
        the end of it. Whoever waits is not woken by steps."""
        with self._urgent:
            self._urgent.wait_for(lambda: self._is_urgent, timeout_s)

    def take_all(self) -> list[Event]:
        with self._ready:
            events = list(self._events)
            self._events.clear()
            self._num_pictures, self._has_rung, self._is_urgent = 0, False, False
            self._ready.notify_all()
        return events

    def _wake(self) -> None:
        """Wake those that wait for any event, and where there is more than steps, those that wait for more."""
        self._ready.notify_all()
        if self._is_urgent:
            self._urgent.notify_all()

    def _ring_once(self) -> None:
        if self._ring is not None and not self._has_rung:
            self._has_rung = True
            self._ring()

    def _drop_older(self, event: Slice) -> None:
        is_older = [
            isinstance(old, Slice | SliceUpdate)
            and old.reply_to == event.reply_to
            and type(old.request) is type(event.request)
            for old in self._events
        ]
        if any(is_older):
            self._num_pictures -= sum(is_older)
            self._events = deque(old for old, is_gone in zip(self._events, is_older, strict=True) if not is_gone)


def _is_of_run(event: Event) -> bool:
    """Whether it is the record of a step, or says that steps follow."""
    return isinstance(event, StepRecord) or says_running(event)


def says_running(event: Event) -> bool:
    return isinstance(event, StateChanged) and event.status.running
