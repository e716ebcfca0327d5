"""Emits the events of the loop: status, answers to the current command, progress and failures."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar

from msgspec.structs import replace

from engine.errors import (
    Cancelled,
    DeviceLost,
    InputError,
    Memory,
    Progress,
    clear_frames,
    first_line,
    is_of_device,
    is_out_of_memory,
    plain,
)
from engine.look.finer import AT_ONCE, Finer, coarser
from engine.loop.inbox import Activity, Inbox
from engine.wire.events import Done, Failed, StateChanged
from engine.wire.message import Command, Event
from engine.wire.pictures import Picture, PictureRequest, Side
from engine.wire.records import StepRecord
from engine.wire.status import EngineStatus, Work


def in_a_sentence(error: BaseException, what: str = "", memory: Memory | None = None) -> str:
    """Any error in one sentence for the user; see `plain`."""
    if words := plain(error, what, memory):
        return words
    cause = ": ".join(dict.fromkeys((type(error).__name__, first_line(error))))
    return f"Something unexpected went wrong ({cause}); the session is as it was."


Found = TypeVar("Found")

log = logging.getLogger(__name__)

PROGRESS_INTERVAL_S = 0.05
ESTIMATES_FROM_S = 0.5  # seconds of work before the remaining time is estimated


class Reporter:
    """Emits events. `reply_to` is the id of the current command, which `reply` answers. `work` is the running piece of
    work that takes a while, for the status; `status` gives the engine's present status. With a `finer` it is heard over
    a slow line. `is_inline`: whoever listens has called the loop, and what fails is raised instead of reported."""

    def __init__(
        self,
        emit: Callable[[Event], None],
        status: Callable[[], EngineStatus],
        activity: Activity,
        inbox: Inbox,
        finer: Finer | None = None,
        is_inline: bool = False,
    ) -> None:
        self._emit, self.finer, self.is_inline = emit, finer, is_inline
        self.reply_to: int | None = None
        self.work: Work | None = None
        self._status, self._activity, self._inbox = status, activity, inbox
        self._said_at = self._began_at = 0.0
        self._began_with = 0
        self._is_loading = False
        self._sized: tuple[PictureRequest | None, PictureRequest | None] = None, None  # the newest one, and its coarser
        self._open: dict[int, Literal["one", "any"]] = {}  # `Facts.answers` of commands without their last word
        self.memory: Callable[[], Memory | None] = lambda: None  # releases memory and says how much is free

    def emit(self, event: Event) -> None:
        """Emit an event that answers no command."""
        self._emit(event.as_told if isinstance(event, StepRecord) else event)

    def send_status(self) -> None:
        """Emit the present status."""
        self.emit(StateChanged(self._status()))

    def take(self, command: Command) -> None:
        """Begin with a command, which `reply` answers from now on."""
        self.reply_to = command.id
        self._open[command.id] = command.facts.answers

    def end(self, command_id: int, last_word: Event) -> None:
        """Emit the last word of a command, unless it has had one."""
        if self._open.pop(command_id, None) is not None:
            self.answer(command_id, last_word)

    def end_all_but(self, *going_on: int | None) -> None:
        """Emit the last word of all commands but these, for which more is done."""
        for command_id in [each for each in self._open if each not in going_on]:
            self.end(command_id, Done())

    def reply(self, event: Event) -> None:
        """Emit an event as an answer to the current command."""
        self.answer(self.reply_to, event)

    def reply_picture(
        self, take: Callable[[PictureRequest], Picture], request: PictureRequest, side: Side | None = None
    ) -> None:
        """Answer with a picture; over a slow line with a coarser one if it is too large, which it follows itself, taken
        when nothing else is to be done. Those of both sides of a comparison and of their difference have the same
        cells."""
        found, kind, number = None, (type(request), side), self.reply_to
        if self.finer is not None:
            self.finer.drop(kind)
            if side in (None, "a") or self._sized[0] != request:
                found = take(request)
                self._sized = request, coarser(found, request, self.finer.most_bytes // AT_ONCE)
            if (smaller := self._sized[1]) is not None:
                self.reply(take(smaller))
                self.finer.owe(kind, lambda: replace(found or take(request), reply_to=number))
                return
        self.reply(found or take(request))

    @property
    def owes(self) -> bool:
        """Whether pictures are still to be taken whole."""
        return self.finer is not None and self.finer.is_owing

    def pay(self) -> None:
        """Take a picture that is owed."""
        assert self.finer is not None
        try:
            self.finer.pay()
        except InputError:  # what it shows is gone
            return
        except Exception as error:
            self.fail(error, "a picture", is_asked=False)

    def answer(self, command_id: int | None, event: Event) -> None:
        """Emit an event as an answer to the command of that id; None: to none."""
        if command_id is not None and (isinstance(event, Failed) or self._open.get(command_id) == "one"):
            self._open.pop(command_id, None)
        self.emit(replace(event, reply_to=command_id))

    def fail(self, error: Exception, what: str, *, is_asked: bool = True) -> None:
        """Report an error in one sentence; an unexpected one is logged as well. `is_asked` False: it answers no
        command. A device failure is not reported here but raised as `DeviceLost`, which ends the loop's work."""
        if self.is_inline:
            raise error
        tell = self.reply if is_asked else self.emit
        if isinstance(error, InputError):
            tell(Failed(str(error)))
            return
        if isinstance(error, DeviceLost):
            raise error
        log.error("%s failed", what, exc_info=error)
        if is_of_device(error):
            raise DeviceLost(first_line(error)) from None
        if is_out_of_memory(error):
            clear_frames(error)  # free the tensors that its frames hold, before the free memory is measured
        tell(Failed(in_a_sentence(error, self._activity.what, self.memory())))

    # ---- progress of work that takes a while ---------------------------------------------------------------------

    def begin(
        self,
        label: str,
        done: int = 0,
        total: int | None = None,
        *,
        can_cancel: bool = True,
        counts_bytes: bool = False,
    ) -> None:
        """Report a piece of work that takes a while, or its progress: `done` of `total` (None: unknown)."""
        self._said_at = time.monotonic()
        if self.work is None or self.work.label != label:
            self._began_at, self._began_with = self._said_at, done
        left_s = self._left_s(done, total)
        self.work = Work(label, done, total, can_cancel, self.reply_to, left_s, is_loading=self._is_loading)
        if counts_bytes:
            took_s = max(self._said_at - self._began_at, 1e-3)
            self.work = replace(self.work, bytes_per_s=(done - self._began_with) / took_s)
        self._activity.begin(label[:1].lower() + label[1:])
        self.send_status()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Mark the work reported in this block as the loading of a model."""
        self._is_loading = True
        try:
            yield
        finally:
            self._is_loading = False

    @contextmanager
    def meanwhile(self, label: str, *, can_cancel: bool = False) -> Iterator[None]:
        """Report a piece of work within another one, which is the reported one again after the block."""
        before, what = self.work, self._activity.what
        self.begin(label, can_cancel=can_cancel)
        try:
            yield
        finally:
            self.work = before
            self._activity.begin(what)
            self.send_status()  # the command around it may have none of its own

    def _left_s(self, done: int, total: int | None) -> float | None:
        """The estimated seconds left at the rate so far; None while it is too early for an estimate."""
        took_s, made = self._said_at - self._began_at, done - self._began_with
        return (total - done) * took_s / made if total and made > 0 and took_s >= ESTIMATES_FROM_S else None

    def progress(self, label: str, done: int, total: int | None, *, counts_bytes: bool = False) -> None:
        """Report progress, at most every `PROGRESS_INTERVAL_S` seconds; raises `Cancelled` if a cancel waits."""
        self._inbox.check_uncancelled()
        is_other = self.work is not None and self.work.label != label
        if is_other or time.monotonic() - self._said_at > PROGRESS_INTERVAL_S:
            self.begin(label, done, total, counts_bytes=counts_bytes)

    def follow(
        self,
        label: str,
        pieces: Iterator[Progress | Found],
        *,
        is_mostly_short: bool = False,
        counts_bytes: bool = False,
    ) -> Found | None:
        """Run `pieces`, which yield (done, total) as progress and at last a result: report the progress and return the
        result, None without one. A cancel raises `Cancelled` between two pieces. `is_mostly_short`: nothing is reported
        until `PROGRESS_INTERVAL_S` has passed."""
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
