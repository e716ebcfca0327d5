"""What follows a step by itself: the watched pictures that it changed, and the surprisals of a long prompt, which are
computed when the loop is idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.loop.reporter import Reporter
from engine.wire.commands import SetPace, Watch
from engine.wire.pictures import Picture, PictureUpdate
from engine.wire.records import StepRecord

if TYPE_CHECKING:
    from engine.look.watch import Watcher
    from engine.session.session import Session


LEAST_WAIT_S = 0.1  # until the next step of a run, to compute a slice before it: a slice takes about half of that


class Watching:
    """Drives the `Watcher` of the live session. There is none before the first session, since it imports torch."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._watcher: Watcher | None = None
        self._pace: SetPace | None = None

    def begin(self) -> None:
        """Begin with another session, of which nothing is watched yet."""
        from engine.look.watch import Watcher

        self.forget()
        self._watcher = Watcher(finer=self._reporter.finer)
        if self._pace is not None:
            self._watcher.set_pace(self._pace)

    def set_pace(self, command: SetPace) -> None:
        self._pace = command
        if self._watcher is not None:
            self._watcher.set_pace(command)

    @property
    def is_due(self) -> bool:
        """Whether pictures are due."""
        return self._watcher is not None and self._watcher.is_due

    def watch(self, session: Session, command: Watch) -> None:
        """Watch these pictures from now on, and send them."""
        if self._watcher is not None:
            self._emit(self._watcher, self._watcher.watch(session, command.pictures))

    def after_step(self, session: Session, record: StepRecord, *, is_last: bool, is_behind: bool) -> None:
        """Send what a step has changed in the watched pictures."""
        if self._watcher is not None:
            self._emit(self._watcher, self._watcher.after_step(session, record, is_last=is_last, is_behind=is_behind))

    def at_phase(self, session: Session) -> None:
        """Send the watched pictures as far as a suspended step has come."""
        if self._watcher is not None:
            self._emit(self._watcher, self._watcher.at_phase(session))

    def catch_up(self, session: Session) -> None:
        """Send the updates that were held back, because no step follows."""
        if self._watcher is not None:
            self._emit(self._watcher, self._watcher.catch_up(session))

    def forget(self) -> None:
        """Stop watching, because the live rows were replaced: the client asks again."""
        if self._watcher is not None:
            self._watcher.forget()

    def undone(self, session: Session) -> None:
        """After a step that failed or was cancelled, replace pictures of its half-written rows by those before it."""
        if self._watcher is not None:
            self._emit(self._watcher, self._watcher.undone(session))

    def _emit(self, watcher: Watcher, pictures: list[Picture | PictureUpdate]) -> None:
        for picture in pictures:
            self._reporter.emit(picture)
        for self._reporter.reply_to, error in watcher.take_failures():
            self._reporter.fail(error, "watching")


def has_time_for_surprisal(session: Session, wait_s: float | None) -> bool:
    """Whether surprisals wait and there is time for a slice; the next step comes in `wait_s` seconds (None: no step
    follows)."""
    if not session.history.surprisal.is_waiting:
        return False
    return wait_s is None or (wait_s > LEAST_WAIT_S and not session.is_prefilling)


def report_surprisal(session: Session, reporter: Reporter) -> None:
    """Compute and report one slice; a chunk that fails is dropped, and the failure reported."""
    from engine.device import trim_heap  # with torch, which the loop must not import before a model is loaded

    try:
        reporter.emit(session.history.surprisal.advance())
        if not session.history.surprisal.is_waiting:
            trim_heap()  # the logits of many tokens were in memory
    except Exception as error:
        reporter.reply_to = None
        reporter.fail(error, "surprisal")


def with_surprisal(session: Session, records: tuple[StepRecord, ...], reporter: Reporter) -> tuple[StepRecord, ...]:
    """The records, completed with all surprisals of their prompts, which are computed now if they still wait. Can be
    cancelled."""
    late = session.history.surprisal
    for found in late.finish() if records else ():
        reporter.emit(found)
        reporter.progress("Computing the surprisal of the prompt", 0, None)
    return tuple(map(late.filled, records))
