"""A snapshot that is open in place of a live session: it can be looked at, and what needs a forward is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from engine.errors import InputError
from engine.loop import exporting
from engine.loop.reporter import Reporter
from engine.saved.document import is_session
from engine.spec.model import ModelSpec, usual_threads
from engine.wire.commands import Command, OpenSnapshot, TakeSlice, Watch
from engine.wire.events import CacheChanged, Event, Restarted, SessionOpened, Submitted
from engine.wire.exporting import EstimateExport, Export
from engine.wire.records import StepRecord
from engine.wire.status import OpenedFile

if TYPE_CHECKING:
    from engine.model.loader import LoadedModel
    from engine.opened.file import OpenedSnapshot
    from engine.opened.session import OpenedSession
    from engine.session.session import Session

RECORDS_AT_ONCE = 256


class OpenFile:
    """At most one file: a snapshot, or a session that was written down. Its steps are told some at a time, between
    commands; pictures of a snapshot are answered at once."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self.snapshot: OpenedSnapshot | None = None
        self.saved: OpenedSession | None = None
        self.info: OpenedFile | None = None
        self._steps: Iterator[StepRecord] | None = None
        self._events: Iterator[Event] | None = None
        self._num_told = 0
        self._fed_before: int | None = None  # tokens before the newest step that was told

    @property
    def has_more(self) -> bool:
        """Whether steps of it are still to be told."""
        return self._steps is not None or self._events is not None

    @property
    def file(self) -> OpenedSnapshot | OpenedSession | None:
        """What is open."""
        return self.snapshot or self.saved

    def read(self, command: OpenSnapshot, *, has_model: bool) -> OpenedSnapshot | OpenedSession:
        """The file, to be taken over; raises `InputError` for one that cannot be looked at."""
        self._reporter.begin(f"Opening {command.path.name}", can_cancel=False)
        if is_session(command.path):
            from engine.opened.session import OpenedSession

            return OpenedSession(command.path)
        import torch

        from engine.opened.file import OpenedSnapshot

        if not has_model:  # else that has chosen
            torch.set_num_threads(usual_threads())
        return OpenedSnapshot(command.path)

    def replace(self, file: OpenedSnapshot | OpenedSession) -> None:
        """It stands in place of what there was."""
        from engine.opened.session import OpenedSession

        self.close()
        self.info = file.opened
        if isinstance(file, OpenedSession):
            self._begin_session(file)
        else:
            self._begin_snapshot(file)

    def _begin_session(self, saved: OpenedSession) -> None:
        self.saved = saved
        self._events = saved.events()
        self._reporter.reply(Restarted())
        self._reporter.tell()
        self.go_on()

    def _begin_snapshot(self, snapshot: OpenedSnapshot) -> None:
        from engine.opened.description import steps_of

        self.snapshot = snapshot
        self._steps, self._num_told, self._fed_before = steps_of(snapshot.file), 0, None
        self._reporter.reply(Restarted())
        self._reporter.tell()
        self._reporter.reply(Submitted(snapshot.sequence.seq_id, snapshot.token_ids, snapshot.texts))
        told = snapshot.file.manifest
        self._reporter.emit(SessionOpened("", snapshot.sequence.sampling, bookmarks=told.bookmarks, view=told.view))
        self.go_on()

    def go_on(self) -> None:
        """Tell some more of its steps. A record that cannot be read ends them; the file stays open."""
        for _ in range(RECORDS_AT_ONCE if self._events is not None else 0):
            if (event := next(self._events, None)) is None:  # type: ignore[arg-type]
                self._events = None
                return
            self._reporter.emit(event)
        for _ in range(RECORDS_AT_ONCE if self._steps is not None else 0):
            try:
                record = next(self._steps, None) if self._steps is not None else None
            except InputError as error:
                self._reporter.fail(error, "an opened snapshot")
                record = self._bare_step()
                self._steps = None
            if record is None:
                self._steps = None
                return
            self._num_told += 1
            part = record.of(self.snapshot.sequence.seq_id) if self.snapshot is not None else None
            self._fed_before = part.first_position if part is not None else self._fed_before
            self._reporter.emit(record)

    def _bare_step(self) -> StepRecord | None:
        """The tokens at least, where no step of it can be read."""
        from engine.opened.description import bare_step

        if self._num_told or self.snapshot is None:
            return None
        return bare_step(self.snapshot.file, 0, self.snapshot.last_step or 0)

    def close(self) -> None:
        """Let the file go."""
        if self.snapshot is not None:
            self.snapshot.close()
        self.snapshot = self.saved = self.info = self._steps = self._events = None

    def handle(self, command: Command) -> None:
        """Answer what can be seen; raises `InputError` for everything that needs a forward."""
        snapshot = self.snapshot
        match command:
            case Watch(pictures=()) if self.saved is not None:
                pass  # nothing is watched in a file
            case TakeSlice() | Watch() if self.saved is not None:
                self.saved.refuse()
            case _ if snapshot is None:
                raise InputError(self.why_not)
            case Export():
                exporting.export(snapshot.file, command, self._reporter)
            case EstimateExport():
                exporting.estimate(snapshot.file, command, self._reporter)
            case TakeSlice(request=request):
                self._reporter.reply(snapshot.take(request))
            case Watch():
                self._watch(snapshot, command)
            case _:
                raise InputError(self.why_not)

    def _watch(self, snapshot: OpenedSnapshot, command: Watch) -> None:
        """Nothing changes in a file: each picture is answered once. One that fails does not take the others with it."""
        from engine.look.watch import request_now

        for watched in command.pictures:
            self._reporter.reply_to = watched.id
            request = request_now(watched, snapshot.num_tokens, snapshot.last_step, self._fed_before)
            if request is None:
                continue
            try:
                self._reporter.reply(snapshot.take(request))
            except Exception as error:
                self._reporter.fail(error, "watching a file")

    @property
    def why_not(self) -> str:
        """Why nothing is computed here, and what to do."""
        assert self.info is not None
        kind = "snapshot" if self.info.has_rows else "session"
        if self.info.why_not:
            why_not = self.info.why_not
            return f"This is an opened {kind}, which can only be looked at: {why_not}. Load a model to leave it."
        return f"This is an opened {kind}: load {self.info.model or 'its model'} to go on from it."

    # ---- with the model ------------------------------------------------------------------------------------------

    def fits(self, model: LoadedModel) -> bool:
        """Whether decoding can go on from the file with this model."""
        if self.saved is not None:
            return not self.saved.why_not(model.info)
        from engine.snapshot.resume import why_not_resumable

        return self.snapshot is not None and not why_not_resumable(model, self.snapshot.file)

    def as_in_file(self, model: ModelSpec) -> ModelSpec:
        """The model to go on with, in the numbers of an opened snapshot where nobody chose any."""
        from engine.snapshot.resume import as_in_file

        return as_in_file(model, self.snapshot.file) if self.snapshot is not None else model

    def in_other_numbers(self, asked: ModelSpec, model: LoadedModel) -> ModelSpec | None:
        """What to load in place of the model that `asked` gave, where it has the weights of the opened snapshot in
        numbers that nobody chose and the file has not."""
        wanted = self.as_in_file(asked)
        is_its = self.snapshot is not None and self.snapshot.file.manifest.fingerprint == model.info.fingerprint
        return wanted if is_its and wanted.dtype not in ("auto", model.info.dtype) else None

    def resumed(self, model: LoadedModel) -> tuple[Session, CacheChanged]:
        """A session that goes on from the file, all steps of which were told, and what is to be told of it; raises
        `InputError` with the reason where it cannot, and the file stays open."""
        from engine.snapshot.resume import resumed

        assert self.snapshot is not None
        began, path = time.perf_counter(), self.snapshot.file.path
        session = resumed(model, self.snapshot.file)
        while self.has_more:
            self.go_on()
        took_ms = (time.perf_counter() - began) * 1e3
        return session, CacheChanged(session.cache, f"goes on from {path.name}", took_ms, session.bytes())

    def resumed_where_it_fits(self, model: LoadedModel) -> tuple[Session, CacheChanged] | None:
        """As `resumed`; None where the model does not fit, and where the file cannot be read, which is told: a broken
        file must keep no model from being loaded."""
        try:
            return self.resumed(model) if self.fits(model) else None
        except InputError as error:
            self._reporter.fail(error, "going on from a snapshot")
            return None

    def check_can_be_left(self, *, goes_on: bool) -> None:
        """Raises `InputError` where nothing is open, or no model could go on from it."""
        if self.info is None:
            raise InputError(f"There is no opened snapshot to {'go on from' if goes_on else 'close'}: open one first.")
        if goes_on and self.info.why_not:
            raise InputError(self.why_not)
