"""The opened file that takes the place of a live session: it can be viewed; commands that need a forward are
refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from engine.errors import InputError
from engine.loop.reporter import Reporter
from engine.saved.document import is_session
from engine.spec.model import ModelSpec, usual_threads
from engine.wire.commands import OpenSnapshot, Watch
from engine.wire.events import CacheChanged, Event, Restarted, SessionOpened, Submitted
from engine.wire.records import StepRecord
from engine.wire.status import OpenedFile

if TYPE_CHECKING:
    from engine.model.loader import LoadedModel
    from engine.opened.file import OpenedSnapshot
    from engine.opened.session import OpenedSession
    from engine.session.session import Session

RECORDS_AT_ONCE = 256


class OpenFile:
    """Holds at most one opened file: a snapshot, or a saved session. Its steps are reported in batches between
    commands; pictures of a snapshot are answered at once."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self.snapshot: OpenedSnapshot | None = None
        self.saved: OpenedSession | None = None
        self.info: OpenedFile | None = None
        self._events: Iterator[Event] | None = None
        self._computed_before: int | None = None  # tokens before the newest step that was reported

    @property
    def has_more(self) -> bool:
        """Whether steps of the file are still to be reported."""
        return self._events is not None

    @property
    def file(self) -> OpenedSnapshot | OpenedSession | None:
        """The opened file, None where none is."""
        return self.snapshot or self.saved

    def read(self, command: OpenSnapshot, *, has_model: bool) -> OpenedSnapshot | OpenedSession:
        """Read the file of a command, without opening it here yet; raises `InputError` for one that cannot be
        viewed."""
        self._reporter.begin(f"Opening {command.path.name}", can_cancel=False)
        if is_session(command.path):
            from engine.opened.session import OpenedSession

            return OpenedSession(command.path)
        import torch

        from engine.opened.file import OpenedSnapshot

        if not has_model:  # loading a model sets the number of threads
            torch.set_num_threads(usual_threads())
        return OpenedSnapshot(command.path, command.model)

    def replace(self, file: OpenedSnapshot | OpenedSession) -> None:
        """Make `file` the opened one in place of the one before, and report its steps."""
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
        self._reporter.send_status()
        self.report_more()

    def _begin_snapshot(self, snapshot: OpenedSnapshot) -> None:
        self.snapshot = snapshot
        self._events, self._computed_before = self._steps_of(snapshot), None
        self._reporter.reply(Restarted())
        self._reporter.send_status()
        self._reporter.reply(Submitted(snapshot.sequence.seq_id, snapshot.token_ids, snapshot.texts))
        manifest = snapshot.file.manifest
        self._reporter.emit(
            SessionOpened(snapshot.prompt, snapshot.sequence.sampling, bookmarks=manifest.bookmarks, view=manifest.view)
        )
        self.report_more()

    def report_more(self) -> None:
        """Report the next batch of steps."""
        for _ in range(RECORDS_AT_ONCE):
            if self._events is None or (event := next(self._events, None)) is None:
                self._events = None
                return
            self._reporter.emit(event)
            if self.snapshot is not None and isinstance(event, StepRecord):
                part = event.of(self.snapshot.sequence.seq_id)
                self._computed_before = part.first_position if part is not None else self._computed_before

    def _steps_of(self, snapshot: OpenedSnapshot) -> Iterator[StepRecord]:
        """The steps of a snapshot. A record that cannot be read ends them; where it is the first, a step with only the
        tokens of the snapshot stands for all. The file stays open."""
        from engine.opened.description import bare_step, steps_of

        num_told = 0
        try:
            for record in steps_of(snapshot.file):
                yield record
                num_told += 1
        except InputError as error:
            self._reporter.fail(error, "an opened snapshot", is_asked=False)
            if not num_told:
                yield bare_step(snapshot.file, 0, snapshot.last_step or 0)

    def close(self) -> None:
        """Close the file."""
        if self.snapshot is not None:
            self.snapshot.close()
        self.snapshot = self.saved = self.info = self._events = None

    def watch(self, command: Watch) -> None:
        """Answer each watched picture of the snapshot once, since a file does not change. A picture that fails does not
        affect the others."""
        from engine.look.watch import request_now

        snapshot = self.snapshot
        assert snapshot is not None
        for watched in command.pictures:
            self._reporter.reply_to = watched.id
            request = request_now(watched, snapshot.num_tokens, snapshot.last_step, self._computed_before)
            if request is None:
                continue
            try:
                self._reporter.reply_picture(snapshot.take, request)
            except Exception as error:
                self._reporter.fail(error, "watching a file")

    @property
    def why_not(self) -> str:
        """Why a command that needs a forward is refused, and what to do."""
        assert self.info is not None
        kind = "snapshot" if self.info.has_rows else "session"
        if self.info.why_not:
            why_not = self.info.why_not
            return f"This is an opened {kind}, which can only be viewed: {why_not}. Load a model to leave it."
        return f"This is an opened {kind}: load {self.info.model or 'its model'} to go on from it."

    # ---- continuing with a model ---------------------------------------------------------------------------------

    def fits(self, model: LoadedModel) -> bool:
        """Whether the file can be continued with this model."""
        if self.saved is not None:
            return not self.saved.why_not(model.info)
        from engine.snapshot.resume import why_not_resumable

        return self.snapshot is not None and not why_not_resumable(model, self.snapshot.file)

    def with_dtype_of(self, model: ModelSpec) -> ModelSpec:
        """The model to continue with; where no dtype was chosen, in that of the opened snapshot."""
        from engine.snapshot.resume import with_dtype_of

        return with_dtype_of(model, self.snapshot.file) if self.snapshot is not None else model

    def in_other_numbers(self, asked: ModelSpec, model: LoadedModel) -> ModelSpec | None:
        """What to load instead of `model`, which `asked` gave: the same weights in the dtype of the opened snapshot, if
        that is another one and no dtype was chosen; else None."""
        wanted = self.with_dtype_of(asked)
        if self.snapshot is None:
            return None
        manifest = self.snapshot.file.manifest
        # one that can go on and does not say whose it is may be this model's: what that computes is compared then
        is_its = model.info.fingerprint == (
            manifest.fingerprint or ("" if manifest.why_not else model.info.fingerprint)
        )
        return wanted if is_its and wanted.dtype not in ("auto", model.info.dtype) else None

    def resumed(self, model: LoadedModel) -> tuple[Session, CacheChanged]:
        """A session that continues the opened snapshot, and the event that reports it; all steps of the file are
        reported first. Raises `InputError` with the reason where that cannot be, and the file stays open."""
        from engine.opened.description import readable_steps
        from engine.snapshot.resume import resumed

        assert self.snapshot is not None
        began, path = time.perf_counter(), self.snapshot.file.path
        session = resumed(model, self.snapshot.file)
        for record in readable_steps(self.snapshot.file):
            session.history.log_norms(record)
        while self.has_more:
            self.report_more()
        took_ms = (time.perf_counter() - began) * 1e3
        return session, CacheChanged(session.cache, f"goes on from {path.name}", took_ms, session.bytes())

    def resumed_where_it_fits(self, model: LoadedModel) -> tuple[Session, CacheChanged] | None:
        """As `resumed`; None where the model does not fit or the file cannot be read. The latter is reported and not
        raised: a broken file must not keep a model from being loaded."""
        try:
            return self.resumed(model) if self.fits(model) else None
        except InputError as error:
            self._reporter.fail(error, "going on from a snapshot", is_asked=False)
            return None

    def check_can_be_left(self, *, goes_on: bool) -> None:
        """Raise `InputError` if no file is open, or (with `goes_on`) if no model could continue it."""
        if self.info is None:
            raise InputError(f"There is no opened snapshot to {'go on from' if goes_on else 'close'}: open one first.")
        if goes_on and self.info.why_not:
            raise InputError(self.why_not)
