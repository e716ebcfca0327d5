"""What the loop says: how it stands, answers to the command in hand, progress, and what failed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TypeVar

from msgspec.structs import replace

from engine.errors import (
    Cancelled,
    DeviceLost,
    InputError,
    RowsMissing,
    first_line,
    is_of_device,
    is_out_of_memory,
    let_go_of_frames,
)
from engine.loop.activity import Activity
from engine.loop.failures import plain
from engine.loop.inbox import Inbox
from engine.shortage import Memory
from engine.wire.events import (
    Event,
    Failed,
    StateChanged,
)
from engine.wire.status import EngineStatus, Work

Found = TypeVar("Found")

log = logging.getLogger(__name__)

PROGRESS_INTERVAL_S = 0.05
TELLING_S = 0.5  # of work, before a pace is told from it


class Reporter:
    """`reply_to` is the id of the command in hand: what is said meanwhile answers it. `work` is what takes a while.
    `status` gives how things stand, work included."""

    def __init__(
        self, emit: Callable[[Event], None], status: Callable[[], EngineStatus], activity: Activity, inbox: Inbox
    ) -> None:
        self.emit = emit
        self.reply_to: int | None = None
        self.work: Work | None = None
        self._status, self._activity, self._inbox = status, activity, inbox
        self._said_at = self._began_at = 0.0
        self._began_with = 0
        self._is_loading = False
        self.memory: Callable[[], Memory | None] = lambda: None  # gives back what can be, and says how it stands

    def tell(self) -> None:
        """Say how things stand."""
        self.emit(StateChanged(self._status()))

    def reply(self, event: Event) -> None:
        """Tell something that answers the command in hand."""
        self.answer(self.reply_to, event)

    def answer(self, command_id: int | None, event: Event) -> None:
        """Tell something that answers that command."""
        self.emit(replace(event, reply_to=command_id))

    def fail(self, error: Exception, what: str, *, is_asked: bool = True) -> None:
        """One sentence; an error that nobody foresaw goes to the log as well. Unless `is_asked`, it answers nothing. A
        device that failed is none of what is told here: it ends the loop's work."""
        tell = self.reply if is_asked else self.emit
        if isinstance(error, InputError):
            tell(Failed(str(error), isinstance(error, RowsMissing)))
            return
        if isinstance(error, DeviceLost):
            raise error
        log.error("%s failed", what, exc_info=error)
        if is_of_device(error):
            raise DeviceLost(first_line(error)) from None
        if is_out_of_memory(error):
            let_go_of_frames(error)  # what is free is asked once they hold nothing
        tell(Failed(plain(error, self._activity.what, self.memory())))

    # ---- what takes a while --------------------------------------------------------------------------------------

    def begin(
        self,
        label: str,
        done: int = 0,
        total: int | None = None,
        *,
        can_cancel: bool = True,
        counts_bytes: bool = False,
    ) -> None:
        """Say what takes a while from now on."""
        self._said_at = time.monotonic()
        if self.work is None or self.work.label != label:
            self._began_at, self._began_with = self._said_at, done
        left_s = self._left_s(done, total)
        self.work = Work(label, done, total, can_cancel, self.reply_to, left_s, is_loading=self._is_loading)
        if counts_bytes:
            took_s = max(self._said_at - self._began_at, 1e-3)
            self.work = replace(self.work, bytes_per_s=(done - self._began_with) / took_s)
        self._activity.begin(label[:1].lower() + label[1:])
        self.tell()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """What takes a while in it loads a model."""
        self._is_loading = True
        try:
            yield
        finally:
            self._is_loading = False

    @contextmanager
    def meanwhile(self, label: str) -> Iterator[None]:
        """Say what takes a while within something else, which goes on behind it."""
        before, what = self.work, self._activity.what
        self.begin(label, can_cancel=False)
        try:
            yield
        finally:
            self.work = before
            self._activity.begin(what)

    def _left_s(self, done: int, total: int | None) -> float | None:
        """Seconds that are left at the pace so far; None while that says little."""
        took_s, made = self._said_at - self._began_at, done - self._began_with
        return (total - done) * took_s / made if total and made > 0 and took_s >= TELLING_S else None

    def progress(self, label: str, done: int, total: int | None, *, counts_bytes: bool = False) -> None:
        """Say how far it is, if it was not said just now; raises `Cancelled` where a cancel waits."""
        self._inbox.check_uncancelled()
        is_other = self.work is not None and self.work.label != label
        if is_other or time.monotonic() - self._said_at > PROGRESS_INTERVAL_S:
            self.begin(label, done, total, counts_bytes=counts_bytes)

    def follow(
        self,
        label: str,
        pieces: Iterator[tuple[int, int] | Found],
        *,
        is_mostly_short: bool = False,
        counts_bytes: bool = False,
    ) -> Found | None:
        """Tell how far work is, done and total at each piece, until it yields something else, which is returned. A
        cancel ends it between two pieces. Of what is mostly short nothing is said at its very beginning."""
        self._said_at = time.monotonic() if is_mostly_short else 0.0
        try:
            for piece in pieces:
                if not isinstance(piece, tuple):
                    return piece
                self.progress(label, piece[0], piece[1], counts_bytes=counts_bytes)
        except Cancelled:
            if isinstance(pieces, Generator):
                pieces.close()
            raise
        return None
