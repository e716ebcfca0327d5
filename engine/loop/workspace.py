"""What the loop works on: a live session, or an opened file in its place, which can be viewed while commands that need
a forward are refused; and how one replaces the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple, cast

from engine.errors import InputError, Memory
from engine.loop.breakpoints import Breakpoints
from engine.loop.comparing import Comparing
from engine.loop.inbox import Activity, Inbox, StepsToDo
from engine.loop.loading import load_model, start_libraries
from engine.loop.reporter import Reporter
from engine.loop.watching import Watching
from engine.predict.capacity import possible_layout
from engine.saved.document import is_session
from engine.spec.cache import CacheSpec, cache_label
from engine.spec.model import ModelSpec, check_capture, usual_threads
from engine.spec.sampling import NEWEST_DRAWS, SamplingParams
from engine.wire.commands import CloseSnapshot, Continue, LoadModel, OpenSnapshot, SetCapture, Watch
from engine.wire.devices import Unloaded
from engine.wire.events import CacheChanged, Event, NodeAdded, Restarted
from engine.wire.message import Needs
from engine.wire.status import ModelInfo

if TYPE_CHECKING:
    from engine.model.loader import LoadedModel
    from engine.opened.file import OpenedSnapshot
    from engine.opened.session import OpenedSession
    from engine.session.session import Session


RECORDS_AT_ONCE = 256  # steps of an opened file, between two commands


class HeldModel(NamedTuple):
    """The loaded model, and the bytes of all its caches."""

    info: ModelInfo
    cache_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.info.weight_bytes + self.cache_bytes


class Workspace:
    """Holds either the live `session` or an opened file in `opened`, never both. A new one replaces the old only when
    it is complete; if that fails the old one stays."""

    def __init__(
        self,
        reporter: Reporter,
        inbox: Inbox,
        activity: Activity,
        steps: StepsToDo,
        breakpoints: Breakpoints,
        watching: Watching,
        comparing: Comparing,
    ) -> None:
        self._reporter, self._inbox, self._activity = reporter, inbox, activity
        self._steps, self._breakpoints, self._watching, self._comparing = steps, breakpoints, watching, comparing
        self.session: Session | None = None
        self.opened = OpenFile(reporter)
        self.sampling = SamplingParams(draws=NEWEST_DRAWS)  # of the next prompt that comes without its own
        self._kept_limit: int | None = None  # of kept states in bytes, if the user has set it
        self._cache = CacheSpec()  # of the session before an opened file, or of the first one
        self._capture: SetCapture | None = None
        self._model: LoadedModel | None = None  # of the session before an opened file

    @property
    def cache(self) -> CacheSpec:
        """The cache mode of the live session, or of the next one where there is none."""
        return self._cache if self.session is None else self.session.cache

    @property
    def current(self) -> OpenedSnapshot | OpenedSession | Session | None:
        """The opened file, else the session; None where there is neither."""
        return self.opened.file or self.session

    def check_has(self, needs: Needs) -> None:
        """Raise `InputError` with the remedy where there is not what a command needs."""
        if needs == "nothing":
            return
        if self.opened.file is not None and needs == "session":
            raise InputError(self.opened.why_not)
        if self.opened.file is not None and self.opened.snapshot is None:
            raise InputError(
                "A session file has tokens and steps, and no K and V: go on with its model to compute them."
            )
        if self.current is None:
            raise InputError("There is no model yet: load one first.")

    def load(self, command: LoadModel) -> None:
        """Load a model and replace the session, or the opened file, once that is complete. If the model fits the opened
        file, as it is or in the file's dtype, the file is continued with it; else an empty session begins."""
        self._steps.end()
        if self.session is None:
            self._cache = command.cache
        model, file = self._loaded(command.model), self.opened.file
        if self.opened.snapshot is not None and (wanted := self.opened.snapshot.in_other_numbers(command.model, model)):
            del model
            model = self._loaded(wanted)
        try:
            if file is not None and file.fits(model):
                self._go_on_from(file, model)
                return
        except InputError as error:  # a broken file must not keep a model from being loaded
            self._reporter.fail(error, "going on from a file", is_asked=False)
        self._begin_anew(model, command.cache)

    def _loaded(self, spec: ModelSpec) -> LoadedModel:
        present = self.held
        freed_bytes = None if present is None else present.num_bytes
        model = load_model(spec, self._reporter, self._inbox, self._activity, freed_bytes)
        self._inbox.check_uncancelled()
        return model

    @property
    def model(self) -> LoadedModel | None:
        """The loaded model, of the session or kept while a file is open; None where none is loaded."""
        return self._model if self.session is None else self.session.model

    @property
    def held(self) -> HeldModel | None:
        """The loaded model with the bytes of its caches; None where none is loaded."""
        if self.session is not None:
            held = self.session.bytes()
            return HeldModel(self.session.model.info, held.reserved + held.looking)
        return None if self._model is None else HeldModel(self._model.info, 0)

    @property
    def device(self) -> str:
        """The device of the model, for messages."""
        return "The device" if self.model is None else self.model.info.device

    def memory(self) -> Memory | None:
        """Release unreferenced memory, and say how much is free then and how much the next step needs; None where no
        model is loaded."""
        from engine.device import free_bytes, release_memory

        model = self.model
        if model is None:
            return None
        release_memory(model.device)
        needed = 0 if self.session is None else self.session.ledger.next_step_bytes()
        return Memory(model.info.device, free_bytes(model.device), needed)

    def unload(self) -> None:
        """Unload the model and close the session. Changes that are not in a node yet are reported first, so that a
        recorder has the whole session."""
        from engine.device import release_memory, used_bytes

        held, model = self.held, self.model
        if held is None or model is None:
            raise InputError("No model is loaded: there is nothing to free.")
        device, before = model.device, used_bytes(model.device)
        self._steps.end()
        self._comparing.end("the model was unloaded")
        if self.session is not None:
            self._cache = self.session.cache
            self.session.add_changes()
            for node in self.session.history.take_added():
                self._reporter.reply(NodeAdded(node, is_live=True))
            self.session.close()
        self.session = self._model = model = None
        self._breakpoints.forget()
        self._watching.begin()
        release_memory(device)
        freed = max(0, before - used_bytes(device))
        self._reporter.send_status()
        self._reporter.reply(
            Unloaded(held.info.name, held.info.device, held.info.weight_bytes, held.cache_bytes, freed)
        )

    def _begin_anew(self, model: LoadedModel, cache: CacheSpec) -> None:
        """Begin an empty session in the cache mode asked for, or in the growing one if an encoder-decoder cannot have
        that mode."""
        taken = possible_layout(cache, model.info.geometry)
        session = _session_of(model, taken)
        self._use(session, "another model was loaded")
        self._reporter.reply(Restarted())
        if taken != cache:
            why = f"the mode before, {cache_label(cache)}, takes no model with an encoder"
            self._reporter.emit(CacheChanged(taken, why, 0.0, session.bytes()))

    def set_kept_limit(self, num_bytes: int) -> None:
        """Limit the bytes of kept states, in this session and later ones."""
        if num_bytes < 0:
            raise InputError(f"Checkpoints cannot take {num_bytes:,} bytes: give 0 or more.")
        self._kept_limit = num_bytes
        if self.session is not None:
            self.session.kept.set_limit(num_bytes)

    def set_capture(self, command: SetCapture) -> None:
        """Set how much is measured of every step, in this session and later ones."""
        self._capture = SetCapture(check_capture(command.level), command.by_layer)
        if self.session is not None:
            self.session.captured.set(command.level, by_layer=command.by_layer)

    def _use(self, session: Session, why: str) -> None:
        """Make `session` the live one and close what was there before; `why` is the reason for an end of the
        comparison."""
        if self._capture is not None:
            session.captured.set(self._capture.level, by_layer=self._capture.by_layer)
        if self._kept_limit is not None:
            session.kept.set_limit(self._kept_limit)
        self._comparing.end(why)
        before = self.model
        left = None if before is None or before is session.model else before.device
        self.session = before = self._model = None
        self.session = session
        if left is not None and left.type != "cpu":  # a GPU's caching allocator keeps freed memory
            from engine.device import release_memory

            release_memory(left)
        self.opened.close()
        self._breakpoints.forget()
        self._watching.begin()

    # ---- an opened file ------------------------------------------------------------------------------------------

    def open(self, command: OpenSnapshot) -> None:
        """Open a file in place of the session; its model stays loaded, in case the file is continued with it."""
        file = self.opened.read(command, has_model=(self.session or self._model) is not None)
        self._steps.end()
        self._comparing.end("a file was opened")
        if self.session is not None:
            self._model, self._cache = self.session.model, self.session.cache
        self.session = None
        self.opened.replace(file)

    def leave_file(self, command: Continue | CloseSnapshot) -> None:
        """Continue the opened file, or close it and begin an empty session; with the loaded model if it fits, else the
        command's is loaded."""
        goes_on, model, file = isinstance(command, Continue), self._model, self.opened.file
        if file is None:
            raise InputError(f"There is no opened snapshot to {'go on from' if goes_on else 'close'}: open one first.")
        if goes_on and file.opened.why_not:
            raise InputError(self.opened.why_not)
        if model is None:  # before anything else here imports them without a word
            with self._reporter.loading():
                start_libraries(self._reporter)
        if model is None or (goes_on and not file.fits(model)):
            model = self._loaded(file.with_dtype_of(command.model) if goes_on else command.model)
        if isinstance(command, Continue):
            self._go_on_from(file, model, may_open_files=command.may_open_files)
        else:
            self._begin_anew(model, self._cache)

    def _go_on_from(
        self, file: OpenedSnapshot | OpenedSession, model: LoadedModel, *, may_open_files: bool = False
    ) -> None:
        """Go on from the opened file with its model: a saved session is replayed, and its nodes are reported again with
        the same numbers; a snapshot is resumed, and its steps, all of which are reported first, stay valid. Raises
        `InputError` with the reason where that cannot be, and the file stays open."""
        from engine.loop.replaying import rebuilt
        from engine.opened.session import OpenedSession

        if isinstance(file, OpenedSession):
            session, report = rebuilt(model, file, self._reporter, self._inbox, may_open_files=may_open_files)
            self._use(session, "the opened session goes on")
            self.sampling = file.saved.sampling
            report()
            return
        began = time.perf_counter()
        session = file.resumed(model)
        while self.opened.has_more:
            self.opened.report_more()
        took_ms = (time.perf_counter() - began) * 1e3
        self._use(session, "the opened snapshot goes on")
        self._reporter.send_status()
        how = f"goes on from {file.file.path.name}"
        self._reporter.reply(CacheChanged(session.cache, how, took_ms, session.bytes()))


def _session_of(model: LoadedModel, cache: CacheSpec) -> Session:
    """A new, empty session of a model."""
    from engine.session.session import Session
    from engine.snapshot.resume import rows_of_file

    session = Session(model, cache)
    session.open_rows = rows_of_file
    return session


# ---- the opened file ------------------------------------------------------------------------------------------------


@contextmanager
def _lying_here(command: OpenSnapshot) -> Iterator[Path]:
    """The file of a command: for as long as this lasts a copy, where its content came from another machine."""
    if not command.content:
        yield command.path
        return
    with TemporaryDirectory(prefix="kvloupe-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder) / command.path.name
        copy.write_bytes(command.content)
        yield copy


class OpenFile:
    """Holds at most one opened file: a snapshot, or a saved session. Its steps are reported in batches between
    commands; pictures of a snapshot are answered at once."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self.file: OpenedSnapshot | OpenedSession | None = None
        self._events: Iterator[Event] | None = None

    @property
    def has_more(self) -> bool:
        """Whether steps of the file are still to be reported."""
        return self._events is not None

    @property
    def snapshot(self) -> OpenedSnapshot | None:
        """The opened file, if it has rows."""
        return cast("OpenedSnapshot", self.file) if self.file is not None and self.file.opened.has_rows else None

    def read(self, command: OpenSnapshot, *, has_model: bool) -> OpenedSnapshot | OpenedSession:
        """Read the file of a command, without opening it here yet; raises `InputError` for one that cannot be
        viewed."""
        self._reporter.begin(f"Opening {command.path.name}", can_cancel=False)
        with _lying_here(command) as path:
            if is_session(path):
                from engine.opened.session import OpenedSession

                return OpenedSession(path, command.path)
            import torch

            from engine.opened.file import OpenedSnapshot

            if not has_model:  # loading a model sets the number of threads
                torch.set_num_threads(usual_threads())
            return OpenedSnapshot(path, command.model, command.path)

    def replace(self, file: OpenedSnapshot | OpenedSession) -> None:
        """Make `file` the opened one in place of the one before, and report its steps."""
        self.close()
        self.file, self._events = file, file.events(self._report_unreadable)
        self._reporter.reply(Restarted())
        self._reporter.send_status()
        self.report_more()

    def _report_unreadable(self, error: InputError) -> None:
        self._reporter.fail(error, "an opened file", is_asked=False)

    def report_more(self) -> None:
        """Report the next batch of steps."""
        for _ in range(RECORDS_AT_ONCE):
            if self._events is None or (event := next(self._events, None)) is None:
                self._events = None
                return
            self._reporter.emit(event)

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()
        self.file = self._events = None

    def watch(self, command: Watch) -> None:
        """Answer each watched picture of the snapshot once, since a file does not change. A picture that fails does not
        affect the others."""
        from engine.look.watch import request_now

        snapshot = self.snapshot
        assert snapshot is not None
        for watched in command.pictures:
            self._reporter.reply_to = watched.id
            request = request_now(watched, snapshot.num_tokens, snapshot.last_step, snapshot.computed_before)
            if request is None:
                continue
            try:
                self._reporter.reply_picture(snapshot.take, request)
            except Exception as error:
                self._reporter.fail(error, "watching a file")

    @property
    def why_not(self) -> str:
        """Why a command that needs a forward is refused, and what to do."""
        assert self.file is not None
        info = self.file.opened
        kind = "snapshot" if info.has_rows else "session"
        if info.why_not:
            return f"This is an opened {kind}, which can only be viewed: {info.why_not}. Load a model to leave it."
        return f"This is an opened {kind}: load {info.model or 'its model'} to go on from it."
