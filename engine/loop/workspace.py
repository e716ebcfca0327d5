"""What the loop works on: a live session, or an opened file in its place; and how one replaces the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import InputError, Memory
from engine.loop.breakpoints import Breakpoints
from engine.loop.comparing import Comparing
from engine.loop.inbox import Activity, Inbox, StepsToDo
from engine.loop.loading import HeldModel, load_model, session_of, start_libraries
from engine.loop.opened import OpenFile
from engine.loop.reporter import Reporter
from engine.loop.watching import Watching
from engine.predict.capacity import possible_layout
from engine.spec.cache import CacheSpec, cache_label
from engine.spec.model import check_capture
from engine.spec.sampling import NEWEST_DRAWS, SamplingParams
from engine.wire.commands import CloseSnapshot, Continue, LoadModel, OpenSnapshot, SetCapture
from engine.wire.devices import Unloaded
from engine.wire.events import CacheChanged, Failed, NodeAdded, Restarted
from engine.wire.message import Needs

if TYPE_CHECKING:
    from engine.model.loader import LoadedModel
    from engine.opened.file import OpenedSnapshot
    from engine.opened.session import OpenedSession
    from engine.session.session import Session


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
        if needs == "rows" and self.opened.saved is not None:
            self.opened.saved.refuse()
        if self.opened.file is not None and needs == "session":
            raise InputError(self.opened.why_not)
        if self.current is None:
            raise InputError("There is no model yet: load one first.")

    def load(self, command: LoadModel) -> None:
        """Load a model and replace the session, or the opened file, once that is complete. If the model fits the opened
        file, as it is or in the file's dtype, the file is continued with it; else an empty session begins."""
        self._steps.end()
        if self.session is None:
            self._cache = command.cache
        model = load_model(command.model, self._reporter, self._inbox, self._activity, is_first=self.session is None)
        self._inbox.check_uncancelled()
        if (wanted := self.opened.in_other_numbers(command.model, model)) is not None:
            del model
            model = load_model(wanted, self._reporter, self._inbox, self._activity, is_first=self.session is None)
            self._inbox.check_uncancelled()
        if self.opened.saved is not None and self.opened.fits(model):
            self._rebuild(model, self.opened.saved)
        elif (resumed := self.opened.resumed_where_it_fits(model)) is not None:
            self._resume(*resumed)
        else:
            self._begin_anew(model, command.cache)

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
        session = session_of(model, taken)
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
        goes_on, model = isinstance(command, Continue), self._model
        self.opened.check_can_be_left(goes_on=goes_on)
        if model is None:  # before anything else here imports them without a word
            with self._reporter.loading():
                start_libraries(self._reporter)
        if model is None or (goes_on and not self.opened.fits(model)):
            wanted = self.opened.with_dtype_of(command.model) if goes_on else command.model
            model = load_model(wanted, self._reporter, self._inbox, self._activity, is_first=model is None)
            self._inbox.check_uncancelled()
        if goes_on:
            self._go_on_from_file(model, may_open_files=isinstance(command, Continue) and command.may_open_files)
        else:
            self._begin_anew(model, self._cache)

    def _go_on_from_file(self, model: LoadedModel, *, may_open_files: bool) -> None:
        """Continue the opened file: a saved session is replayed, a snapshot is resumed."""
        if self.opened.saved is not None:
            self._rebuild(model, self.opened.saved, may_open_files=may_open_files)
        else:
            self._resume(*self.opened.resumed(model))

    def _rebuild(self, model: LoadedModel, file: OpenedSession, *, may_open_files: bool = False) -> None:
        """Replay a saved session with the model, make it the live one, and report its nodes again, with the same step
        numbers."""
        from engine.loop.replaying import rebuilt

        if why_not := file.why_not(model.info):
            raise InputError(f"'{file.path}' cannot be gone on from: {why_not}.")
        done = rebuilt(model, file, self._reporter, self._inbox, may_open_files=may_open_files)
        self._use(done.session, "the opened session goes on")
        self.sampling = file.saved.sampling
        self._reporter.reply(Restarted())
        self._reporter.send_status()
        for event in done.events:
            self._reporter.emit(event)
        self._reporter.reply(done.answer)
        self._reporter.send_status()
        self._reporter.reply(done.said)  # last, since what the window showed is a place in all of this
        if done.warning:
            self._reporter.reply(Failed(done.warning))

    def _resume(self, session: Session, changed: CacheChanged) -> None:
        """Make the session that continues a snapshot the live one; the reported steps of the file stay valid."""
        self._use(session, "the opened snapshot goes on")
        self._reporter.send_status()
        self._reporter.reply(changed)
